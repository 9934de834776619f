"""A virtual environment for each peer, made when it is first measured."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from benchmarks.children import Failed

HOME = Path(__file__).resolve().parent / ".environments"


def python_of(key: str) -> Path:
    return HOME / key / "bin" / "python"


def make(key: str, packages: Sequence[str]) -> None:
    """Make a peer's environment, unless it is there with these very packages."""
    place = HOME / key
    stamp = place / "installed.txt"
    wanted = "\n".join(packages) + "\n"
    if stamp.exists() and stamp.read_text() == wanted and python_of(key).exists():
        return
    shutil.rmtree(place, ignore_errors=True)
    HOME.mkdir(exist_ok=True)
    for command in (
        [sys.executable, "-m", "venv", str(place)],
        [str(python_of(key)), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *packages],
    ):
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
        if done.returncode:
            lines = [line for line in done.stdout.splitlines() if line.strip()]
            raise Failed(f"cannot be installed: {lines[-1][:200] if lines else done.returncode}")
    stamp.write_text(wanted)
