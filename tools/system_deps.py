"""Installs the programs for tests that come from Debian and not from PyPI, where that is possible: `make system-deps`.

Never fails: a program that cannot be installed (no network, no rights, not Debian) is named, and with it the tests that are
skipped for want of it. Nothing that was installed is started. Needs Python alone, no package.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

#: Asked by Debian's packages whether a service may be started; 101 is "no".
POLICY = Path("/usr/sbin/policy-rc.d")
#: Where Debian keeps the programs of each version of PostgreSQL: they are not on the path.
POSTGRES = Path("/usr/lib/postgresql")
#: For packages that ask for the run level instead: in single-user mode nothing is started. And nobody answers questions.
ENVIRONMENT = {"RUNLEVEL": "1", "DEBIAN_FRONTEND": "noninteractive"}
#: Without a network it fails soon; while somebody else installs it waits.
APT = (
    "apt-get",
    "-q",
    "-y",
    "-o",
    "Acquire::Retries=0",
    "-o",
    "Acquire::http::Timeout=20",
    "-o",
    "Acquire::https::Timeout=20",
    "-o",
    "DPkg::Lock::Timeout=120",
)


@dataclass(frozen=True, slots=True)
class Needed:
    package: str
    program: str
    tests: str

    @property
    def is_there(self) -> bool:
        return shutil.which(self.program) is not None or (POSTGRES / self.program).exists()


NEEDED = (
    Needed("chromium", "chromium", "the dashboard in a browser"),
    Needed("pgbouncer", "pgbouncer", "PostgreSQL behind a transaction pooler"),
    Needed("prometheus", "prometheus", "metrics read by a Prometheus"),
    Needed("mariadb-server", "mariadbd", "tables adopted from MariaDB"),
    Needed("postgresql-15", "15/bin/initdb", "holdfast on PostgreSQL 15"),
    Needed("systemd", "systemd-analyze", "the units of deploy/systemd"),
    Needed("strace", "strace", "system calls of the units, and disks that fail"),
)


def missing() -> list[Needed]:
    return [one for one in NEEDED if not one.is_there]


def install(wanted: Sequence[Needed]) -> None:
    """Each by itself, so that one which cannot be had does not keep the others away."""
    with _services_not_started():
        failed = [one for one in wanted if not _apt("install", "--no-install-recommends", one.package)]
        # The lists of packages may be old, or missing.
        if failed and _apt("update"):
            for one in failed:
                _apt("install", "--no-install-recommends", one.package)


def obstacle() -> str:
    """Why nothing can be installed here; empty if it can."""
    if shutil.which(APT[0]) is None:
        return "there is no apt-get"
    if os.geteuid() != 0 and not _may_become_root():
        return "this needs root, or sudo without a password"
    return ""


def main() -> None:
    wanted = missing()
    if not wanted:
        print("system packages: all there")
        return
    why = obstacle()
    if not why and os.geteuid() != 0:
        path = f"PATH={os.environ['PATH']}"
        os.execvp("sudo", ["sudo", "-n", "env", path, sys.executable, "-B", "-m", "tools.system_deps"])
    if not why:
        install(wanted)
        why = "apt-get failed, see above"
    if left := missing():
        print(_warning(left, why), file=sys.stderr)


def _warning(left: Sequence[Needed], why: str) -> str:
    lines = [f"  {one.package:<16} skipped without it: tests of {one.tests}" for one in left]
    by_hand = f"To install by hand: apt-get install {' '.join(one.package for one in left)}"
    return "\n".join(["", f"WARNING: not everything is installed: {why}.", *lines, by_hand, ""])


def _apt(*arguments: str) -> bool:
    done = subprocess.run([*APT, *arguments], env={**os.environ, **ENVIRONMENT}, stdin=subprocess.DEVNULL, check=False)
    return done.returncode == 0


def _may_become_root() -> bool:
    if shutil.which("sudo") is None:
        return False
    asked = subprocess.run(["sudo", "-n", "true"], stdin=subprocess.DEVNULL, capture_output=True, check=False)
    return asked.returncode == 0


@contextmanager
def _services_not_started() -> Iterator[None]:
    """As the machine's own policy says, if it has one."""
    if POLICY.exists():
        yield
        return
    POLICY.write_text("#!/bin/sh\nexit 101\n")
    try:
        POLICY.chmod(0o755)
        yield
    finally:
        POLICY.unlink()


if __name__ == "__main__":
    main()
