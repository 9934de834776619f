"""Build a release, try it, and write what its users need to check it.

    python -m tools.release [--commit HEAD] [--into build/release] [--postgres URL]

The source archive, the wheel, the software bill of materials and SHA256SUMS are written into the folder. Both files are
installed on every Python that pyproject.toml names and that is on this machine; there, the first program of the README runs,
and a program for each extra. If anything is wrong, the folder is left without SHA256SUMS, and the exit code is 1.
"""

from __future__ import annotations

import argparse
import hashlib
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import msgspec

from benchmarks.databases import PostgresDatabases, databases
from tools import pythons
from tools.release.bill import bill
from tools.release.build import ROOT, Built, ReleaseFailed, build, git
from tools.release.contents import check_contents
from tools.release.trying import Environment, extras, try_extra, try_first_program

SUMS = "SHA256SUMS"
#: Names of the files of a release.
MADE = ("holdfast-*.tar.gz", "holdfast-*.whl", "holdfast-*.cdx.json", SUMS)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tools.release", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--commit", default="HEAD")
    parser.add_argument("--into", default=ROOT / "build" / "release", type=Path)
    parser.add_argument("--postgres", help="a server to try the extra postgres on; one is started by default")
    given = parser.parse_args(arguments)
    into = given.into.resolve()
    try:
        _release(given.commit, into, given.postgres)
    except ReleaseFailed as error:
        print(f"release: {error}", file=sys.stderr)
        return 1
    return 0


def _release(commit: str, into: Path, postgres: str | None) -> None:
    git(ROOT, "rev-parse", "--verify", f"{commit}^{{commit}}")
    _make_empty(into)
    if git(ROOT, "status", "--porcelain"):
        _say(f"there are changes that are not committed: the release is made of {commit} without them")
    built = build(into, commit)
    check_contents(built)
    _say(f"built from commit {built.commit[:12]}: {built.sdist.name}, {built.wheel.name}; contents as they should be")
    found = {version: python for version in pythons.promised() if (python := pythons.find(version)) is not None}
    for version in pythons.promised():
        if version not in found:
            _say(f"NOT TRIED on Python {version}: {pythons.missing(version)}")
    if not found:
        raise ReleaseFailed("none of the promised Pythons is on this machine")
    with tempfile.TemporaryDirectory() as folder, _server(postgres) as server:
        for version, python in found.items():
            _try(Path(folder) / version, version, python, built, server)
        name, text = _bill(Path(folder) / "bill", *next(iter(found.items())), built)
    (into / name).write_bytes(text)
    _write_sums(into)
    _say(f"done: {into}")


def _make_empty(into: Path) -> None:
    """Remove what an earlier release has left in the folder; a folder with anything else in it is somebody's own."""
    into.mkdir(parents=True, exist_ok=True)
    old = {file for pattern in MADE for file in into.glob(pattern)}
    if others := sorted(file.name for file in into.iterdir() if file not in old):
        raise ReleaseFailed(f"{into} holds {others[0]!r}, which no release has made: give an empty folder with --into")
    for file in old:
        file.unlink()


def _try(folder: Path, version: str, python: Path, built: Built, server: PostgresDatabases) -> None:
    constraints = ROOT / "constraints.txt"
    for file in built.files:
        environment = Environment.make(folder / file.suffix[1:], python)
        environment.install(file, (), constraints)
        try_first_program(environment)
        _say(f"Python {version}: {file.name} is installed, and the first program runs")
    for extra in extras():
        environment = Environment.make(folder / f"with-{extra}", python)
        environment.install(built.wheel, [extra], constraints)
        url = server.fresh()
        try:
            try_extra(environment, extra, url)
        finally:
            server.drop(url)
    _say(f"Python {version}: {', '.join(extras())} work, each by itself")


def _bill(folder: Path, version: str, python: Path, built: Built) -> tuple[str, bytes]:
    """The bill of an environment with every extra, and the name of its file."""
    environment = Environment.make(folder, python)
    environment.install(built.wheel, extras(), ROOT / "constraints.txt")
    content = bill(environment.packages, extras(), version, built.epoch)
    name = f"{'-'.join(built.wheel.name.split('-')[:2])}.cdx.json"
    return name, msgspec.json.format(msgspec.json.encode(content), indent=2) + b"\n"


def _write_sums(into: Path) -> None:
    lines = [f"{hashlib.sha256(file.read_bytes()).hexdigest()}  {file.name}\n" for file in sorted(into.iterdir())]
    (into / SUMS).write_text("".join(lines))


@contextmanager
def _server(postgres: str | None) -> Iterator[PostgresDatabases]:
    with databases("postgres", None, postgres) as [found]:
        assert isinstance(found, PostgresDatabases)
        yield found


def _say(text: str) -> None:
    print(f"release: {text}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
