"""What people install: a wheel with everything in it that runs on every promised Python, and with its types."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import sysconfig
import tomllib
import venv
import zipfile
from pathlib import Path

import pytest

from tests.support.turns import in_turn
from tools import pythons

ROOT = Path(__file__).parents[2]
#: What a user may ask for beside the library; the other extras are for those who work on it.
EXTRAS = sorted(
    tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"].keys()
    - {"dev", "docs", "examples"}
)

PROGRAM = """
from holdfast import Added, Context, Item, Permanent, Pipeline, RetryLater
from holdfast.answers import Summary

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
assert summary.failed == 0
print("done")
"""

#: Every module but those for tests with pytest, and the packages that some of them import only when they are used.
IMPORT_ALL = """
import importlib, pkgutil, sys
import aiosqlite, click, cronsim, fsspec, genai_prices, jinja2, msgspec, opentelemetry.trace, prometheus_client, psycopg
import pyarrow, rich, selectolax, sqlalchemy.ext.asyncio, starlette, uvicorn, yaml
import holdfast

for module in pkgutil.walk_packages(holdfast.__path__, "holdfast."):
    if not module.name.endswith(("__main__", "pytest_plugin", "conformance")):
        importlib.import_module(module.name)
print("%d.%d" % sys.version_info[:2])
print(holdfast.__file__)
"""

#: What pip says where there is no network.
NO_NETWORK = re.compile(
    r"NewConnectionError|Name or service not known|name resolution|Network is unreachable|connect to proxy"
)

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


#: The promised Pythons that are on this machine take turns.
HERE = [version for version in pythons.promised() if pythons.find(version) is not None]


@pytest.fixture(scope="module", params=in_turn(HERE or pythons.promised()))
def with_all_it_needs(
    request: pytest.FixtureRequest, installed: Path, tmp_path_factory: pytest.TempPathFactory
) -> tuple[str, Path]:
    """A version of Python, and an environment of it into which pip put the wheel and what the wheel asks for."""
    version = str(request.param)
    python = pythons.find(version)
    if python is None:
        pytest.skip(pythons.missing(version))
    environment = tmp_path_factory.mktemp(f"python{version}")
    subprocess.run([python, "-m", "venv", environment], check=True, capture_output=True)
    [wheel] = installed.glob("*.whl")
    pip = [environment / "bin/python", "-m", "pip", "install", "--disable-pip-version-check", "--no-compile"]
    wanted = ["-c", ROOT / "constraints.txt", f"{wheel}[{','.join(EXTRAS)}]"]
    done = subprocess.run([*pip, *wanted], cwd=environment, capture_output=True, text=True, env=_without_ours())
    if done.returncode and NO_NETWORK.search(done.stderr):
        pytest.skip("there is no network to install packages from")
    assert done.returncode == 0, done.stderr
    return version, environment


def _without_ours() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if not name.startswith(("HOLDFAST_", "PYTHON"))}


@pytest.mark.together("wheel")
def test_the_wheel_has_all_that_is_read_at_run_time_and_says_that_it_has_types(installed: Path) -> None:
    package = _package(installed / "environment")
    there = {file.relative_to(package) for file in package.rglob("*") if file.is_file()}
    wanted = {
        file.relative_to(ROOT / "holdfast")
        for file in (ROOT / "holdfast").rglob("*")
        if file.is_file() and file.suffix != ".pyc"
    }
    assert there == wanted
    assert Path("py.typed") in there


@pytest.mark.together("wheel")
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


@pytest.mark.parametrize("version", pythons.promised())
def test_every_promised_python_is_here_to_try_the_wheel(version: str) -> None:
    if version not in HERE:
        pytest.skip(f"THE WHEEL IS NOT TRIED on Python {version}: {pythons.missing(version)}")


@pytest.mark.together("wheel")
def test_the_wheel_and_what_it_asks_for_run_on_every_promised_python_and_on_both_databases(
    with_all_it_needs: tuple[str, Path], bare_url: str, tmp_path: Path
) -> None:
    version, environment = with_all_it_needs
    address = "sqlite:///books.db"
    assert address in PROGRAM
    (tmp_path / "program.py").write_text(PROGRAM.replace(address, bare_url))
    programs = environment / "bin"

    def run(*command: str | Path) -> list[str]:
        ran = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, env=_without_ours())
        assert ran.returncode == 0, ran.stderr
        return ran.stdout.splitlines()

    said = run(programs / "python", "-c", IMPORT_ALL)
    assert said == [version, str(_package(environment) / "__init__.py")]
    run(programs / "holdfast", "db", "upgrade", "--store", bare_url)
    assert run(programs / "python", "program.py")[-1] == "done"
    listed = json.loads(
        "\n".join(run(programs / "holdfast", "items", "--state", "done", "--json", "--store", bare_url))
    )
    assert [(one["key"], one["stage"]) for one in listed] == [("v.epub", "extract"), ("v.epub", "chunk")]


def _package(environment: Path) -> Path:
    [package] = environment.glob("lib/python*/site-packages/holdfast")
    return package


@pytest.mark.together("wheel")
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
