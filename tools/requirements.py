"""Prints every requirement of docs/requirements.md with the tests that carry its id; `make requirements`.

Tests say what they prove with `pytest.mark.req("J1")` and what they inject with `pytest.mark.fault(1)`,
as a decorator of a function or a class, on a parameter, or in `pytestmark`. Tests are read, not run. Fails if
an id that is delivered has no test, or if a test carries an id that the page does not have.
"""

from __future__ import annotations

import ast
import re
import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
STATUSES = ("delivered", "open")

_ROW = re.compile(r"^\| *([A-Z]?\d+) *\| *([^|]*?) *\| *(.*?) *\|$", re.MULTILINE)


class Requirement(NamedTuple):
    """One row of the page."""

    id: str
    status: str
    text: str


class Mark(NamedTuple):
    """An id, and a test that carries it."""

    id: str
    test: str


class Report(NamedTuple):
    lines: list[str]
    problems: list[str]


def read_page(text: str) -> list[Requirement]:
    """The rows of every table whose first column is an id. A bare number is a fault."""
    return [Requirement(f"fault {id_}" if id_.isdigit() else id_, *rest) for id_, *rest in _ROW.findall(text)]


def read_tests(folder: Path) -> Iterator[Mark]:
    """The ids that the tests below a folder carry, file by file."""
    for file in sorted(folder.rglob("test_*.py")):
        tree = ast.parse(file.read_text(encoding="utf-8"), str(file))
        yield from _Module(tree).marks(file.relative_to(folder.parent).as_posix())


def report(requirements: list[Requirement], marks: Iterable[Mark]) -> Report:
    """Every id with its tests, and what is wrong."""
    tests: dict[str, dict[str, None]] = {}
    for mark in marks:
        tests.setdefault(mark.id, {})[mark.test] = None
    lines: list[str] = []
    problems: list[str] = []
    known: set[str] = set()
    for one in requirements:
        proofs = tests.get(one.id, {})
        lines.append(f"{one.id:<9} {one.status:<10} {one.text}")
        lines += [f"{'':<20} {test}" for test in proofs]
        if one.id in known:
            problems.append(f"{one.id} is listed twice")
        if one.status not in STATUSES:
            problems.append(f"{one.id} has the status {one.status!r}; there are: {', '.join(STATUSES)}")
        elif one.status == "delivered" and not proofs:
            problems.append(f"{one.id} is delivered and has no test")
        known.add(one.id)
    for unknown in sorted(tests.keys() - known):
        problems += [f"{test} carries {unknown}, which the page does not have" for test in tests[unknown]]
    return Report(lines, problems)


def main(page: Path = ROOT / "docs" / "requirements.md", tests: Path = ROOT / "tests") -> int:
    """Print the report; 1 if something is wrong."""
    requirements = read_page(page.read_text(encoding="utf-8"))
    lines, problems = report(requirements, read_tests(tests))
    if not requirements:
        problems.append(f"{page} lists no requirement")
    count = Counter(one.status for one in requirements)
    print("\n".join(lines))
    print(f"\n{len(requirements)} ids: {', '.join(f'{count[one]} {one}' for one in STATUSES)}", flush=True)
    for problem in problems:
        print(f"problem: {problem}", file=sys.stderr)
    return 1 if problems else 0


class _Module:
    """One test file. Names it gives to marks, or to lists with marks in them, stand for those marks."""

    def __init__(self, tree: ast.Module) -> None:
        self._body = tree.body
        self._named: dict[str, list[str]] = {}
        for node in tree.body:
            if isinstance(node, ast.Assign):
                for target in node.targets:
                    self._named.setdefault(ast.unparse(target), []).extend(self._ids([node.value]))

    def marks(self, where: str) -> Iterator[Mark]:
        yield from self._marks(self._body, where, self._named.get("pytestmark", []))

    def _marks(self, body: list[ast.stmt], where: str, inherited: list[str]) -> Iterator[Mark]:
        for node in body:
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) and node.name.startswith("test"):
                for id_ in inherited + self._ids(node.decorator_list):
                    yield Mark(id_, f"{where}::{node.name}")
            elif isinstance(node, ast.ClassDef) and node.name.startswith("Test"):
                ids = inherited + self._ids([*node.decorator_list, *_pytestmark(node.body)])
                inside = list(self._marks(node.body, f"{where}::{node.name}", ids))
                # A class whose tests are all inherited carries its marks itself.
                yield from inside or [Mark(id_, f"{where}::{node.name}") for id_ in ids]
            elif isinstance(node, ast.Assign) and (name := ast.unparse(node.targets[0])).startswith("Test"):
                # A class made elsewhere, such as the TestCase of a state machine; or its `pytestmark`.
                for id_ in inherited + self._ids([node.value]):
                    yield Mark(id_, f"{where}::{name.removesuffix('.pytestmark')}")

    def _ids(self, expressions: Iterable[ast.expr]) -> list[str]:
        found: list[str] = []
        for node in (node for expression in expressions for node in ast.walk(expression)):
            if isinstance(node, ast.Name):
                found += self._named.get(node.id, [])
            elif isinstance(node, ast.Call):
                prefix = _PREFIX.get(ast.unparse(node.func).removeprefix("pytest."))
                if prefix is not None:
                    # What is not written out names no id, and is reported as it stands.
                    found += [prefix + ast.unparse(arg).strip("'\"") for arg in node.args]
        return found


_PREFIX = {"mark.req": "", "mark.fault": "fault "}


def _pytestmark(body: list[ast.stmt]) -> list[ast.expr]:
    assigned = [node for node in body if isinstance(node, ast.Assign)]
    return [node.value for node in assigned if ast.unparse(node.targets[0]) == "pytestmark"]


if __name__ == "__main__":
    sys.exit(main())
