"""The list of events is what the code records."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import holdfast
from holdfast.legacy import import_logs
from holdfast.model.history import EVENTS

#: Those that record an event, and those that hand its name on.
RECORDING = {"record", "_record", "_tell"}
#: Those that record events of users, whose names are theirs.
OF_USERS = {"record_user_event", "record_user_events"}


def texts(node: ast.expr, within: ast.AST) -> set[str]:
    """What an expression can be: a text, one of two, or a name that was given one in the same function."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return {node.value}
    if isinstance(node, ast.IfExp):
        return texts(node.body, within) | texts(node.orelse, within)
    if isinstance(node, ast.Name):
        given = [one for one in ast.walk(within) if isinstance(one, ast.Assign)]
        found = [one.value for one in given if ast.unparse(one.targets[0]) == node.id]
        return {text for value in found for text in texts(value, within)}
    return set()


def recorded() -> Iterator[tuple[str, set[str]]]:
    package = Path(holdfast.__file__).parent
    for file in [*(package / "engine").glob("*.py"), *(package / "legacy").glob("*.py"), package / "jobs.py"]:
        tree = ast.parse(file.read_text())
        functions = [one for one in ast.walk(tree) if isinstance(one, ast.FunctionDef)]
        for function in (one for one in functions if one.name not in RECORDING | OF_USERS):
            for call in (one for one in ast.walk(function) if isinstance(one, ast.Call) and one.args):
                name = getattr(call.func, "attr", getattr(call.func, "id", ""))
                if name in RECORDING:
                    args = [one for one in call.args if ast.unparse(one) not in ("tx", "self._tx", "known")]
                    yield f"{file.name}:{call.lineno}", texts(args[0], function)


@pytest.mark.req("J5")
def test_every_event_that_is_recorded_is_in_the_list_and_the_other_way_round() -> None:
    found = dict(recorded())
    assert [place for place, names in found.items() if not names] == []
    # What comes from an old database has times of its own, and is written as rows.
    assert set().union(*found.values(), {import_logs.EVENT}) == EVENTS
