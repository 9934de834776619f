"""Installs the files of a release into clean environments, and uses them there: the first program of the README, each extra.

An environment has what pip puts there for one file and one extra, and nothing else, so that an extra which forgets a package is
noticed.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tools.release.build import ROOT, ReleaseFailed

#: For people who work on holdfast; it asks for a hundred packages, and none of what is installed uses them.
NOT_FOR_USERS = frozenset({"dev", "docs"})
SMOKES = Path(__file__).parent / "smokes"
#: Where a smoke finds a database of its own on a server.
SERVER = "SMOKE_POSTGRES"

_CONSOLE = [
    (["python", "books.py"], 0, "anna-karenina: 14 words"),
    (["holdfast", "add", "books.py", "gormenghast"], 0, "books: 1 new, 0 changed, 0 unchanged"),
    (["holdfast", "run", "books.py"], 3, "gormenghast is not on the shelf"),
    (["holdfast", "db", "check"], 0, "All is well."),
]


def extras() -> list[str]:
    """Those that users install."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    return sorted(set(project["optional-dependencies"]) - NOT_FOR_USERS)


def smoke_of(extra: str) -> Path:
    # Not by its own name: a program called asyncio.py would be imported in place of asyncio.
    return SMOKES / f"try_{extra}.py"


@dataclass(frozen=True)
class Environment:
    """A virtual environment of its own, in a folder with a place for stores beside it."""

    folder: Path
    python: Path

    @classmethod
    def make(cls, folder: Path, python: Path) -> Environment:
        folder.mkdir(parents=True)
        _run([python, "-m", "venv", "--without-pip", folder / "environment"], folder)
        return cls(folder, folder / "environment/bin/python")

    @property
    def packages(self) -> Path:
        [found] = self.folder.glob("environment/lib/python*/site-packages")
        return found

    def install(self, file: Path, wanted: Sequence[str], constraints: Path) -> None:
        """Install this file with these extras. The versions are those that tests are run with."""
        extra = f"[{','.join(wanted)}]" if wanted else ""
        # The pip of this process, so that none has to be put there first.
        _run(
            [
                *(sys.executable, "-m", "pip", "--python", self.python, "--disable-pip-version-check", "install"),
                *("--quiet", "--no-compile", "-c", constraints, f"{file}{extra}"),
            ],
            self.folder,
        )

    def run(self, command: Sequence[str | Path], code: int = 0, variables: Mapping[str, str] | None = None) -> str:
        program, *rest = command
        return _run([self.python.with_name(str(program)), *rest], self.folder, code, variables)


def try_first_program(environment: Environment) -> None:
    """Do what the README tells a newcomer to do."""
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    block, *_ = re.findall(r"^```python\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)
    (environment.folder / "books.py").write_text(block, encoding="utf-8")
    for command, code, words in _CONSOLE:
        said = environment.run(command, code)
        if words not in said:
            raise ReleaseFailed(f"`{' '.join(command)}` does not say {words!r}:\n{said}")


def try_extra(environment: Environment, extra: str, server: str) -> None:
    """Run the program that uses what this extra is for."""
    said = environment.run(["python", "-P", smoke_of(extra)], variables={SERVER: server})
    if said.splitlines()[-1:] != [f"{extra}: works"]:
        raise ReleaseFailed(f"the smoke test of {extra} has not come to its end:\n{said}")


def _run(command: Sequence[str | Path], folder: Path, code: int = 0, variables: Mapping[str, str] | None = None) -> str:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("HOLDFAST_", "PYTHON"))}
    done = subprocess.run(
        command,
        cwd=folder,
        env={**kept, **(variables or {})},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    if done.returncode != code:
        shown = " ".join(map(str, command))
        raise ReleaseFailed(f"`{shown}` ended with {done.returncode} instead of {code}:\n{done.stdout}")
    return done.stdout
