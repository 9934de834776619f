"""Builds the source archive and the wheel of a commit. The same commit gives the same bytes, in any folder and at any time.

What git has is built, in a folder of its own: files that were never committed cannot slip in. The wheel is built from the
source archive, which shows that the archive is complete.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


class ReleaseFailed(Exception):
    """The release is not fit for its users; the text says why."""


@dataclass(frozen=True)
class Built:
    """The two files, the commit they were made from, and its time."""

    sdist: Path
    wheel: Path
    commit: str
    epoch: int

    @property
    def files(self) -> tuple[Path, Path]:
        return self.sdist, self.wheel


def build(into: Path, commit: str = "HEAD", repository: Path = ROOT) -> Built:
    """Build both files of this commit."""
    number = git(repository, "rev-parse", "--verify", f"{commit}^{{commit}}").strip()
    epoch = int(git(repository, "show", "-s", "--format=%ct", number))
    into.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / "copy"
        copy.mkdir()
        archive = subprocess.run(["git", "-C", repository, "archive", number], capture_output=True, check=True).stdout
        # The rights of files are in the archive, and nobody's umask is to change them.
        subprocess.run(["tar", "-x", "-p", "-C", copy], input=archive, check=True)
        sdist = _hatch(copy, "sdist", into, epoch)
        unpacked = Path(folder) / "unpacked"
        unpacked.mkdir()
        subprocess.run(["tar", "-x", "-C", unpacked, "-f", sdist], check=True)
        [source] = unpacked.iterdir()
        wheel = _hatch(source, "wheel", into, epoch)
    return Built(sdist, wheel, number, epoch)


def git(repository: Path, *arguments: str) -> str:
    """What git says, or the reason why there is no release."""
    if shutil.which("git") is None:
        raise ReleaseFailed("git is not installed: a release is made from a commit")
    done = subprocess.run(["git", "-C", repository, *arguments], capture_output=True, text=True, check=False)
    if done.returncode:
        raise ReleaseFailed(f"git {' '.join(arguments)}: {done.stderr.strip()}")
    return done.stdout


def _hatch(source: Path, target: str, into: Path, epoch: int) -> Path:
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("HATCH_", "PYTHON"))}
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run(
            [sys.executable, "-m", "hatchling", "build", "-t", target, "-d", folder],
            cwd=source,
            env={**clean, "SOURCE_DATE_EPOCH": str(epoch)},
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            raise ReleaseFailed(f"the {target} cannot be built:\n{done.stdout}{done.stderr}")
        [made] = Path(folder).iterdir()
        return Path(shutil.move(made, into / made.name))
