"""The map, and pages like it, name what is there: every room, every file, every function."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "holdfast"
PAGE = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")

#: Doors, not rooms: what `import holdfast` and `python -m holdfast` begin with.
DOORS = {"__init__.py", "__main__.py"}

#: Pages for those who change the code.
OTHERS = [ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs" / "reasons").glob("*.md"))]


def named() -> list[tuple[str, str]]:
    """Every path on the page, with the function or class that is named in it, if one is."""
    spans = re.findall(r"`([^`\s]+)`", PAGE)
    paths = [span.partition(":") for span in spans if re.match(r"[\w/]+(/|\.(py|sql|md))(:\w+)?$", span)]
    return [(path, name) for path, _, name in paths]


def place(path: str) -> Path:
    return (ROOT if path.startswith(("docs/", "tests/", "holdfast/")) else PACKAGE) / path


def defined_in(file: Path) -> set[str]:
    """The functions and classes of a module."""
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
    return {one.name for one in ast.parse(file.read_text(encoding="utf-8")).body if isinstance(one, kinds)}


@cache
def files_of_the_package() -> list[str]:
    return [f"/{file.relative_to(PACKAGE)}" for kind in ("py", "sql") for file in PACKAGE.rglob(f"*.{kind}")]


def exists(path: str, page: Path) -> bool:
    """A path from the root, one beside the page, or the end of one in the package."""
    inside = any(file.endswith(f"/{path}") for file in files_of_the_package())
    return inside or (ROOT / path).exists() or (page.parent / path).exists()


def rooms() -> set[str]:
    """What lies right below the package, as the page writes it."""
    modules = {one.name for one in PACKAGE.glob("*.py")} - DOORS
    return modules | {f"{one.parent.name}/" for one in PACKAGE.glob("*/__init__.py")}


def test_every_path_on_the_map_exists():
    assert len(named()) > 80
    assert sorted({path for path, _ in named() if not place(path).exists()}) == []


def test_every_function_on_the_map_is_in_its_file():
    functions = {(path, name) for path, name in named() if name}
    assert len(functions) > 20
    assert sorted((path, name) for path, name in functions if name not in defined_in(place(path))) == []


def test_every_room_is_on_the_map():
    [table] = re.findall(r"^## The rooms\n(.*?)^## ", PAGE, re.DOTALL | re.MULTILINE)
    first_cells = "\n".join(line.split("|")[1] for line in table.splitlines() if line.startswith("| `"))
    assert rooms() - set(re.findall(r"`([^`]+)`", first_cells)) == set()


@pytest.mark.parametrize("page", OTHERS, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_file_of_ours_that_a_page_names_exists(page: Path):
    paths = re.findall(r"(?<![\w/.-])[\w/-]*\w\.(?:py|sql|md)\b", page.read_text(encoding="utf-8"))
    assert sorted({path for path in paths if not exists(path, page)}) == []
