"""`make system-deps` installs what it can, says what it could not, and never fails."""

from __future__ import annotations

from pathlib import Path

import pytest

from tools import system_deps

#: What it was asked for last, and whether services may be started, is written down.
APT = """#!/bin/sh
for word in "$@"; do :; done
starts=yes
[ "$RUNLEVEL" = 1 ] && ! {folder}/policy && starts=no
echo "$word, starts services: $starts" >> {folder}/asked
PATH=/usr/bin:/bin
"""
#: Knows no package before an update, and never one that this system does not have.
DEBIAN = """
case "$word" in
  update) touch {folder}/updated ;;
  chromium) exit 100 ;;
  postgresql-15) [ -e {folder}/updated ] && cp "$0" {folder}/bin/15/bin/initdb ;;
  mariadb-server) [ -e {folder}/updated ] && cp "$0" {folder}/bin/mariadbd ;;
  systemd) [ -e {folder}/updated ] && cp "$0" {folder}/bin/systemd-analyze ;;
  *) [ -e {folder}/updated ] && cp "$0" {folder}/bin/"$word" ;;
esac
"""


class Machine:
    """One with the programs of a folder and no others."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "bin" / "15" / "bin").mkdir(parents=True)

    def have(self, program: str, does: str = "") -> None:
        file = self.folder / "bin" / program
        file.write_text((APT + does).format(folder=self.folder))
        file.chmod(0o755)

    def asked(self) -> list[str]:
        file = self.folder / "asked"
        return file.read_text().splitlines() if file.exists() else []


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    machine = Machine(tmp_path)
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    monkeypatch.setattr(system_deps, "POLICY", tmp_path / "policy")
    monkeypatch.setattr(system_deps, "POSTGRES", tmp_path / "bin")
    monkeypatch.setattr(system_deps.os, "geteuid", lambda: 0)
    return machine


def test_what_is_there_is_not_installed_again(machine: Machine, capfd: pytest.CaptureFixture[str]):
    for program in (*(one.program for one in system_deps.NEEDED), "apt-get"):
        machine.have(program)
    system_deps.main()
    assert capfd.readouterr() == ("system packages: all there\n", "")
    assert machine.asked() == []


def test_what_can_be_had_is_installed_and_not_started_and_the_rest_is_named(
    machine: Machine, capfd: pytest.CaptureFixture[str]
):
    machine.have("apt-get", DEBIAN)
    machine.have("prometheus")
    system_deps.main()
    tried = ["chromium", "pgbouncer", "mariadb-server", "postgresql-15", "systemd", "strace"]
    assert machine.asked() == [f"{word}, starts services: no" for word in (*tried, "update", *tried)]
    assert [one.package for one in system_deps.missing()] == ["chromium"]
    assert not (machine.folder / "policy").exists(), "others may start services again"
    said = capfd.readouterr().err
    assert "WARNING: not everything is installed: apt-get failed" in said
    assert "chromium         skipped without it: tests of the dashboard in a browser" in said
    assert said.rstrip().endswith("apt-get install chromium")


def test_without_a_network_it_says_so_and_goes_on(machine: Machine, capfd: pytest.CaptureFixture[str]):
    machine.have("apt-get", "exit 100")
    system_deps.main()
    assert len(machine.asked()) == len(system_deps.NEEDED) + 1, "each package once, and one update"
    assert capfd.readouterr().err.count("skipped without it") == len(system_deps.NEEDED)


@pytest.mark.parametrize(
    ("programs", "why"), [((), "there is no apt-get"), (("apt-get",), "this needs root, or sudo without a password")]
)
def test_who_may_not_install_is_told_what_is_missing(
    machine: Machine,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    programs: tuple[str, ...],
    why: str,
):
    monkeypatch.setattr(system_deps.os, "geteuid", lambda: 1000)
    for program in programs:
        machine.have(program)
    machine.have("sudo", "exit 1")
    system_deps.main()
    said = capfd.readouterr().err
    assert f"WARNING: not everything is installed: {why}." in said
    assert said.count("skipped without it") == len(system_deps.NEEDED)


def test_a_policy_that_the_machine_has_is_left_as_it_is(machine: Machine):
    machine.have("apt-get", "exit 100")
    (machine.folder / "policy").write_text("its own")
    system_deps.main()
    assert (machine.folder / "policy").read_text() == "its own"
