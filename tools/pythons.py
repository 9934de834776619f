"""Finds the Pythons of this machine that holdfast is for: `python -m tools.pythons 3.12` prints a path, or says why not.

Looked for in HOLDFAST_PYTHONS (paths, as in PATH), on PATH, among the versions of pyenv, and in the Python that asks.
"""

from __future__ import annotations

import functools
import os
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
VARIABLE = "HOLDFAST_PYTHONS"

_ASK = "import ensurepip, sqlite3, ssl, sys, venv; print('%d.%d' % sys.version_info[:2])"
_PROMISED = re.compile(r"Programming Language :: Python :: (3\.\d+)")


def promised() -> list[str]:
    """The versions that pyproject.toml names, oldest first."""
    lines = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["classifiers"]
    return [match[1] for line in lines if (match := _PROMISED.fullmatch(line))]


def find(version: str) -> Path | None:
    """A Python of this version that can make environments and reach databases; None if there is none."""
    return next((one for one in _candidates(version) if _version(one) == version), None)


def missing(version: str) -> str:
    """The reason for which something is not done with a version."""
    return f"no usable Python {version} on PATH or in pyenv; {VARIABLE}=/path/to/python{version} names one"


def main(version: str) -> None:
    found = find(version)
    if found is None:
        raise SystemExit(missing(version))
    print(found)


def _candidates(version: str) -> Iterator[Path]:
    yield from (Path(one) for one in os.environ.get(VARIABLE, "").split(os.pathsep) if one)
    if f"{sys.version_info[0]}.{sys.version_info[1]}" == version:
        yield Path(sys.base_prefix) / "bin" / f"python{version}"
        yield Path(sys.executable)
    pyenv = Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv")
    yield from sorted(pyenv.glob(f"versions/{version}.*/bin/python"))
    # Each folder by itself: pyenv puts programs there that only say which version they would be of.
    for folder in os.get_exec_path():
        if (found := shutil.which(f"python{version}", path=folder)) is not None:
            yield Path(found)


@functools.cache
def _version(python: Path) -> str:
    """What it says of itself; empty if it does not run, or lacks what holdfast needs."""
    try:
        asked = subprocess.run([python, "-I", "-c", _ASK], capture_output=True, text=True, check=False)
    except OSError:
        return ""
    return asked.stdout.strip()


if __name__ == "__main__":
    main(sys.argv[1])
