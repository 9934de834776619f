"""The examples are code that people copy: they use what holdfast makes public, and nothing from inside."""

from __future__ import annotations

import ast
import importlib
from pathlib import Path

import pytest
import sqlalchemy as sa

import holdfast
from tests.support.mother import ROOT

PUBLIC = (
    "holdfast",
    "holdfast.adopt",
    "holdfast.adopt.compat",
    "holdfast.aio",
    "holdfast.answers",
    "holdfast.providers",
    "holdfast.testing",
    "holdfast.web",
)
MODULES = sorted((ROOT / "examples").rglob("*.py"))


@pytest.mark.req("J21")
@pytest.mark.parametrize("module", MODULES, ids=lambda path: str(path.relative_to(ROOT)))
def test_an_example_uses_public_names_only(module):
    for node in ast.walk(ast.parse(module.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            assert not [one.name for one in node.names if one.name.startswith("holdfast.") and one.name not in PUBLIC]
        elif isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "holdfast":
            assert node.module in PUBLIC, f"{node.module} is inside"
            names = importlib.import_module(node.module).__all__
            assert not {one.name for one in node.names} - {*names}


def test_every_public_name_is_there():
    assert [name for name in holdfast.__all__ if getattr(holdfast, name) is None] == []


def test_an_engine_for_the_store_reaches_its_tables_and_enforces_foreign_keys(url, store, database):
    engine = holdfast.store_engine(url)
    table = "holdfast_items" if database == "sqlite" else "items"
    schema = None if database == "sqlite" else sa.make_url(url).query["schema"]
    assert sa.inspect(engine).has_table(table, schema=schema)
    if database == "sqlite":
        with engine.connect() as connection:
            assert connection.exec_driver_sql("PRAGMA foreign_keys").scalar() == 1


def imports_of(module: Path) -> set[str]:
    """The modules that it imports from, by their full names."""
    found = set()
    for node in ast.walk(ast.parse(module.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.module:
            found |= {node.module, *(f"{node.module}.{one.name}" for one in node.names)}
        elif isinstance(node, ast.Import):
            found |= {one.name for one in node.names}
    return found


@pytest.mark.req("J21")
@pytest.mark.parametrize("module", MODULES, ids=lambda path: str(path.relative_to(ROOT)))
def test_what_a_reader_copies_needs_nothing_fake_and_what_is_fake_says_so(module):
    """Only commands and shows begin what stands in for the world outside; handlers and tables do not know of it."""
    if module.parent.name == "fakes":
        assert module.name.startswith("fake_") or module.name in ("__init__.py", "commands.py")
    elif module.name not in ("__main__.py", "demo.py"):
        assert not [name for name in imports_of(module) if ".fakes" in name]
