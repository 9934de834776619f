"""What is in the files of a release: all that the package needs when it runs, and nothing else."""

from __future__ import annotations

import configparser
import tarfile
import tomllib
import zipfile
from email.parser import Parser
from pathlib import Path, PurePosixPath

from tools.release.build import ROOT, Built, ReleaseFailed, git

#: The kinds of files that the package consists of. Anything else, a database or a cache, has been committed by mistake.
KINDS = frozenset({".py", ".sql", ".html", ".css", ".js", ".svg"})
MARKER = PurePosixPath("holdfast/py.typed")
#: Read when it runs: were all of a kind missing, imports would still succeed.
READ_AT_RUN_TIME = (
    "holdfast/schema/migrations/*.sql",
    "holdfast/store/sql/*.sql",
    "holdfast/web/templates/*.html",
    "holdfast/web/static/*",
)
BESIDE_THE_PACKAGE = frozenset({".gitignore", "CHANGELOG.md", "LICENSE", "PKG-INFO", "README.md", "pyproject.toml"})
DIST_INFO = frozenset({"METADATA", "RECORD", "WHEEL", "entry_points.txt", "licenses/LICENSE"})


def check_contents(built: Built, repository: Path = ROOT) -> None:
    """Refuse files with anything missing, anything too much, or another version than the code has."""
    package = _package(built, repository)
    project = tomllib.loads(git(repository, "show", f"{built.commit}:pyproject.toml"))["project"]
    name = f"{project['name']}-{project['version']}"
    with tarfile.open(built.sdist) as sdist:
        found = {one.name for one in sdist if not one.isdir()}
    _same(built.sdist, found, {f"{name}/{one}" for one in {*map(str, package), *BESIDE_THE_PACKAGE}})
    with zipfile.ZipFile(built.wheel) as wheel:
        _same(
            built.wheel, set(wheel.namelist()), {*map(str, package), *(f"{name}.dist-info/{one}" for one in DIST_INFO)}
        )
        metadata = Parser().parsestr(wheel.read(f"{name}.dist-info/METADATA").decode())
        scripts = configparser.ConfigParser()
        scripts.read_string(wheel.read(f"{name}.dist-info/entry_points.txt").decode())
        code = wheel.read("holdfast/version.py").decode()
    if metadata["Version"] != project["version"] or f'VERSION = "{project["version"]}"' not in code:
        raise ReleaseFailed(f"pyproject.toml has version {project['version']}, holdfast/version.py has another one")
    if "holdfast" not in scripts["console_scripts"]:
        raise ReleaseFailed(f"{built.wheel.name} has no command `holdfast`")


def _package(built: Built, repository: Path) -> list[PurePosixPath]:
    """The files of the package, as git has them."""
    listed = git(repository, "ls-tree", "-r", "--name-only", built.commit, "holdfast").splitlines()
    package = [PurePosixPath(line) for line in listed]
    odd = [str(one) for one in package if one.suffix not in KINDS and one != MARKER]
    tests = [str(one) for one in package if one.name.startswith("test_") or one.name == "conftest.py"]
    if odd or tests:
        raise ReleaseFailed(f"these do not belong into a release: {', '.join(odd + tests)}")
    for pattern in READ_AT_RUN_TIME:
        if not any(one.match(pattern) for one in package):
            raise ReleaseFailed(f"the package has no {pattern}")
    if MARKER not in package:
        raise ReleaseFailed(f"the package has no {MARKER}, so that nobody sees its types")
    return package


def _same(file: Path, found: set[str], wanted: set[str]) -> None:
    if missing := sorted(wanted - found):
        raise ReleaseFailed(f"{file.name} lacks {', '.join(missing)}")
    if extra := sorted(found - wanted):
        raise ReleaseFailed(f"{file.name} has what nobody needs: {', '.join(extra)}")
