"""A function outside of tests fits on a screen."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent
FOLDERS = ("holdfast", "tools", "examples", "benchmarks")
MOST_LINES = 60


def longer(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) and node.end_lineno is not None:
            if node.end_lineno - node.lineno + 1 > MOST_LINES:
                yield node.name


def test_no_function_has_more_than_sixty_lines():
    files = [
        file
        for folder in FOLDERS
        for file in sorted((ROOT / folder).rglob("*.py"))
        # Environments of peers, which the benchmark makes, are not ours.
        if not any(part.startswith(".") for part in file.relative_to(ROOT).parts)
    ]
    found = {
        f"{file.relative_to(ROOT)}:{name}" for file in files for name in longer(ast.parse(file.read_text("utf-8")))
    }
    assert found == set()


def test_a_function_of_sixty_one_lines_is_found():
    body = "    pass\n"
    assert list(longer(ast.parse("def short():\n" + body * (MOST_LINES - 1)))) == []
    assert list(longer(ast.parse("def long():\n" + body * MOST_LINES))) == ["long"]
