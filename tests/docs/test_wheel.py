"""What people install: a wheel with everything in it that runs, and with its types."""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
import venv
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

PROGRAM = """
from holdfast import Added, Context, Item, Permanent, Pipeline, RetryLater, Summary

books = Pipeline("books", store="sqlite:///books.db")


@books.stage(version="1", max_attempts=5, timeout="30m")
async def extract(item: Item, ctx: Context) -> dict[str, str]:
    if not item.data:
        raise Permanent("there is nothing to read")
    text = await ctx.once("ask", ask, str(item.data["path"]), cost=0.40)
    return {"markdown": text}


@books.stage(after=extract)
def chunk(item: Item, ctx: Context) -> dict[str, int] | RetryLater:
    return {"chunks": len(ctx.result(extract)["markdown"].split())}


async def ask(path: str) -> str:
    return f"read {path}"


added: Added = books.add([{"key": "v.epub", "path": "v.epub"}])
summary: Summary = books.run()
assert added.new == 1
assert not summary.bad
print("done")
"""

#: With what holdfast needs from the environment of the tests, and holdfast itself from the other.
RUN = """
import sys

sys.path.sort(key=lambda path: "environment" not in path)
import holdfast

print(holdfast.__file__)
import program
"""


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of an environment into which the wheel was put, and nothing else of ours."""
    folder = tmp_path_factory.mktemp("wheel")
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)]
    subprocess.run(build, cwd=ROOT, check=True, capture_output=True)
    [wheel] = folder.glob("*.whl")
    environment = folder / "environment"
    venv.create(environment, symlinks=True)
    [packages] = environment.glob("lib/python*/site-packages")
    zipfile.ZipFile(wheel).extractall(packages)
    (folder / "program.py").write_text(PROGRAM)
    (folder / "run.py").write_text(RUN)
    return folder


@pytest.mark.xdist_group("wheel")
def test_the_wheel_has_all_that_is_read_at_run_time_and_says_that_it_has_types(installed: Path) -> None:
    [package] = installed.glob("environment/lib/python*/site-packages/holdfast")
    there = {file.relative_to(package) for file in package.rglob("*") if file.is_file()}
    wanted = {
        file.relative_to(ROOT / "holdfast")
        for file in (ROOT / "holdfast").rglob("*")
        if file.is_file() and file.suffix != ".pyc"
    }
    assert there == wanted
    assert Path("py.typed") in there


@pytest.mark.xdist_group("wheel")
def test_a_program_runs_with_what_was_installed(installed: Path) -> None:
    ran = subprocess.run(
        [installed / "environment/bin/python", "run.py"],
        cwd=installed,
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "PYTHONPATH": sysconfig.get_paths()["purelib"]},
    )
    said = ran.stdout.splitlines()
    assert said[0].startswith(str(installed))
    assert said[-1] == "done"


@pytest.mark.xdist_group("wheel")
def test_a_strict_type_checker_is_content_with_a_users_program(installed: Path) -> None:
    checked = subprocess.run(
        [
            sys.executable,
            "-m",
            "mypy",
            "--strict",
            "--python-executable",
            str(installed / "environment/bin/python"),
            "--cache-dir",
            str(installed / "cache"),
            "program.py",
        ],
        cwd=installed,
        capture_output=True,
        text=True,
    )
    assert checked.returncode == 0, checked.stdout
