"""Runs holdfast as it was at an earlier commit, to see that today's code gets along with it.

    python -m tools.old_version --store sqlite:////tmp/old.db              # makes a store in which every state occurs
    python -m tools.old_version --store sqlite:////tmp/old.db --work       # runs an old worker until it is stopped
    python -m tools.old_version --store sqlite:////tmp/old.db --look       # prints what the old code makes of the store

The library of that commit is taken out of this repository's history, into a folder below the temporary directory that is
used again the next time. The program that runs on it is `tests/support/population.py`, which today's code can run, too.
Exits with 69 if the history is not there (a shallow clone, a source archive, no git).
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
#: The last commit before the fifth schema.
COMMIT = "f9130e19072d3e65ec1fcc95e334cff31a99c09d"
#: The newest schema that it knows.
SCHEMA = 4
PROGRAM = "tests.support.population"
NO_HISTORY = 69


class NoHistory(Exception):
    """This repository does not have the commit."""


def old_code(commit: str = COMMIT) -> Path:
    """A folder with the package `holdfast` of that commit."""
    # Nobody else may put code there: it is run.
    home = Path(tempfile.gettempdir()) / f"holdfast-old-versions-{os.getuid()}"
    home.mkdir(mode=0o700, exist_ok=True)
    if home.stat().st_uid != os.getuid():
        raise PermissionError(f"{home} belongs to somebody else: remove it, or set TMPDIR")
    folder = home / commit
    if not folder.exists():
        fresh = tempfile.mkdtemp(dir=home)
        subprocess.run(["tar", "-x", "-C", fresh], input=_archive(commit), check=True)
        try:
            os.rename(fresh, folder)
        except OSError:
            shutil.rmtree(fresh)
            if not folder.exists():  # or another process was quicker
                raise
    return folder


def command(work: str, store: str, ledger: Path, code: Path) -> list[str]:
    """Runs the program by the code in this folder; `environment` belongs to it."""
    # -P: the current folder has a package of the same name.
    return [sys.executable, "-P", "-m", PROGRAM, work, "--store", store, "--ledger", str(ledger), "--code", str(code)]


def environment(code: Path) -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": os.pathsep.join([str(code), str(ROOT)])}


def _archive(commit: str) -> bytes:
    try:
        done = subprocess.run(["git", "-C", str(ROOT), "archive", commit, "holdfast"], capture_output=True, check=False)
    except FileNotFoundError:
        raise NoHistory("git is not installed, so there is no earlier version to run") from None
    if done.returncode:
        why = done.stderr.decode(errors="replace").strip()
        raise NoHistory(
            f"commit {commit[:12]} is not in the history here (a shallow clone or a source archive?): {why}"
        )
    return done.stdout


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tools.old_version", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--store", required=True, help="the address of the store")
    parser.add_argument("--ledger", type=Path, help="a file in which handlers write down what they do, to keep it")
    parser.add_argument("--commit", default=COMMIT, help="another commit")
    what = parser.add_mutually_exclusive_group()
    what.add_argument(
        "--work", action="store_const", dest="what", const="work", help="run a worker until it is stopped"
    )
    what.add_argument("--look", action="store_const", dest="what", const="look", help="print what is in the store")
    parser.set_defaults(what="fill")
    given = parser.parse_args(arguments)
    try:
        code = old_code(given.commit)
    except NoHistory as error:
        print(f"old_version: {error}", file=sys.stderr)
        return NO_HISTORY
    with tempfile.TemporaryDirectory() as folder:
        # A real file in any case: the program waits for what its own handlers have written there.
        ledger = given.ledger or Path(folder) / "ledger"
        words = command(given.what, given.store, ledger, code)
        return subprocess.run(words, env=environment(code), check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
