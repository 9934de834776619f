"""The units of `deploy/systemd`: systemd accepts them, they confine what they run, and a stop is never cut short."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from holdfast import Holdfast
from tests.support.recipes import DEPLOY, ROOT, UNITS, longest_stop, unit_command, unit_settings
from tests.support.waiting import wait_for

#: Read as a tenth: systemd's rating from 0 (confined) to 10 (may do anything).
HIGHEST_EXPOSURE = "15"
#: So long may a traced worker take on a busy machine.
PATIENCE = 240
#: Settings that are newer than some systemds; those ignore them and say so.
NEWER_SETTINGS = ("RestartSteps", "RestartMaxDelaySec")

has_systemd = pytest.mark.skipif(
    shutil.which("systemd-analyze") is None, reason="NOT PROVED HERE: there is no systemd-analyze; install systemd"
)
has_strace = pytest.mark.skipif(shutil.which("strace") is None, reason="NOT PROVED HERE: there is no strace")

#: Both ways of running a handler.
PROGRAM = """
from holdfast import Pipeline

books = Pipeline("books")


@books.stage()
def read(item, ctx):
    return 1


@books.stage(after=read, isolate="process")
def count(item, ctx):
    return 2
"""


def analyze(*words: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "SYSTEMD_COLORS": "0", "LANG": "C.UTF-8"}
    return subprocess.run(["systemd-analyze", *words], capture_output=True, text=True, env=environment, check=False)


@pytest.fixture
def installed(tmp_path: Path) -> Path:
    """The units, with a program that exists on this machine."""
    folder = tmp_path / "units"
    shutil.copytree(DEPLOY / "systemd", folder)
    for unit in folder.glob("*.service"):
        text = unit.read_text(encoding="utf-8")
        unit.write_text(text.replace("/opt/holdfast/bin/holdfast", "/bin/true"), encoding="utf-8")
    return folder


def complaints(said: str) -> list[str]:
    """What `verify` says about our files, without what it does not know yet."""
    ours = [line for line in said.splitlines() if "holdfast" in line]
    return [line for line in ours if not re.search(f"Unknown key.* '({'|'.join(NEWER_SETTINGS)})'", line)]


@pytest.mark.req("P19")
@has_systemd
@pytest.mark.parametrize("name", [file.name for file in (*UNITS, DEPLOY / "systemd" / "holdfast-run@.timer")])
def test_systemd_accepts_the_unit(installed: Path, name: str):
    done = analyze("verify", "--man=no", str(installed / name))
    assert (done.returncode, complaints(done.stderr)) == (0, [])


@has_systemd
def test_a_setting_that_systemd_does_not_know_is_found(installed: Path):
    unit = installed / "holdfast-worker@.service"
    unit.write_text(unit.read_text(encoding="utf-8").replace("KillMode=", "KillMood="), encoding="utf-8")
    done = analyze("verify", "--man=no", str(unit))
    assert any("KillMood" in line for line in complaints(done.stderr))


@pytest.mark.req("P19")
@has_systemd
@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.name)
def test_the_unit_confines_what_it_runs(unit: Path):
    done = analyze("security", "--offline=true", "--no-pager", f"--threshold={HIGHEST_EXPOSURE}", str(unit))
    assert done.returncode == 0, done.stdout.splitlines()[-1]


@has_systemd
def test_without_the_sandbox_the_rating_is_too_high(installed: Path):
    shutil.rmtree(installed / "holdfast-.service.d")
    unit = installed / "holdfast-worker@.service"
    assert analyze("security", "--offline=true", f"--threshold={HIGHEST_EXPOSURE}", str(unit)).returncode != 0


@pytest.mark.req("P19")
@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.name)
def test_systemd_waits_longer_than_a_graceful_stop_takes(unit: Path):
    settings = unit_settings(unit)
    assert settings["KillSignal"] == ["SIGTERM"]
    assert float(settings["TimeoutStopSec"][0]) > longest_stop(unit_command(unit))


def allowed_calls() -> set[str]:
    """The system calls that the sandbox lets pass."""
    allowed: set[str] = set()
    for line in unit_settings(DEPLOY / "systemd" / "holdfast-.service.d" / "sandbox.conf")["SystemCallFilter"]:
        calls = {call for word in line.removeprefix("~").split() for call in expanded(word)}
        allowed = allowed - calls if line.startswith("~") else allowed | calls
    return allowed


def expanded(name: str) -> set[str]:
    """The system calls of a set of systemd's, and of the sets in it."""
    if not name.startswith("@"):
        return {name}
    lines = analyze("syscall-filter", name).stdout.splitlines()[1:]
    words = [line.strip() for line in lines if line.strip() and not line.strip().startswith("#")]
    return {call for word in words for call in expanded(word)}


@pytest.mark.req("P19")
@has_systemd
@has_strace
def test_every_system_call_of_a_worker_is_allowed_by_the_sandbox(url: str, tmp_path: Path):
    """A filter that is too tight shows as an error nobody understands, on a machine that is not here."""
    (tmp_path / "program.py").write_text(PROGRAM)
    counted = tmp_path / "calls"
    words = [sys.executable, "-m", "holdfast", "worker", "program.py", "--processes", "1", "--store", url]
    traced = ["strace", "-f", "-qq", "-c", "-U", "name", "-o", str(counted), *words]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    with Holdfast(url) as app, (tmp_path / "said").open("w") as said:
        process = subprocess.Popen(traced, cwd=tmp_path, env=environment, stdout=said, stderr=said)
        try:
            # The pipeline is known once the worker has begun.
            wait_for(lambda: "books" in [one.name for one in app.status().pipelines], PATIENCE)
            app.add("books", ["walden"])
            wait_for(lambda: app.show("walden").status == "done", PATIENCE)
        finally:
            # Not strace itself: it would end without having seen the stop.
            [worker] = psutil.Process(process.pid).children()
            worker.terminate()
            process.wait(PATIENCE)
    assert process.returncode == 0, (tmp_path / "said").read_text()
    made = set(re.findall(r"^(\w+)$", counted.read_text(), re.MULTILINE)) - {"syscall", "total"}
    assert {"execve", "futex"} < made
    # As root, SQLite gives its files to the owner of the database.
    made -= {"fchown"} if os.geteuid() == 0 else set()
    assert sorted(made - allowed_calls()) == []
