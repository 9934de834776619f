"""No test waits for ever: within four days each has run, on both databases where it has a choice."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from tests.support import effort, turns

DAYS = 4


class Test:
    """What is asked of one."""

    __test__ = False

    def __init__(self, nodeid: str, **params: str) -> None:
        self.nodeid, self.callspec = nodeid, SimpleNamespace(params=params)


def on_both(name: str, *others: str) -> list[Any]:
    """A test of these parameters on each database."""
    return [
        Test(f"{name}[{'-'.join([database, *others])}]", database=database, **{one: one for one in others})
        for database in turns.DATABASES
    ]


ITEMS = [
    *(one for name in turns.ONE_BY_ONE for one in on_both(f"{name}::test_a")),
    *(one for name in turns.WHOLE for param in "xyz" for one in on_both(f"{name}::test_b", param)),
    *(one for name in turns.SELDOM for letter in "abcd" for one in on_both(f"{name}{letter}")),
    *(one for name in turns.BY_FILE for letter in "ab" for one in on_both(f"{name}{letter}.py::test_e")),
    *(one for name in turns.THINNED for param in "vwxyz" for one in on_both(f"{name}test_it.py::test_f", param)),
    *on_both("tests/engine/test_claim.py::test_always"),
    Test("tests/model/test_money.py::test_without_a_database"),
]


def ran(day: int, monkeypatch: pytest.MonkeyPatch) -> set[str]:
    monkeypatch.setenv(turns.VARIABLE, str(day))
    waiting = turns.waiting(ITEMS)
    return {one.nodeid for one in ITEMS if one not in waiting}


@pytest.fixture(autouse=True)
def as_usual(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(effort.VARIABLE, raising=False)


def test_within_four_days_every_test_has_run_on_both_databases(monkeypatch: pytest.MonkeyPatch):
    by_day = [ran(day, monkeypatch) for day in range(DAYS)]
    assert set.union(*by_day) == {one.nodeid for one in ITEMS}
    assert all(len(one) < len(ITEMS) * 0.6 for one in by_day)


@pytest.mark.parametrize("day", range(DAYS))
def test_some_parameter_of_every_test_is_run_every_day(day: int, monkeypatch: pytest.MonkeyPatch):
    tests = {
        one.nodeid.partition("[")[0] for one in ITEMS if not one.nodeid.startswith((*turns.SELDOM, *turns.BY_FILE))
    }
    assert {name.partition("[")[0] for name in ran(day, monkeypatch)} >= tests


def test_what_takes_no_turns_is_run_every_day(monkeypatch: pytest.MonkeyPatch):
    always = set.intersection(*(ran(day, monkeypatch) for day in range(DAYS)))
    assert always == {one.nodeid for one in ITEMS[-3:]}


def test_a_thorough_run_leaves_nothing_for_another_day(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv(effort.VARIABLE, "1")
    assert ran(0, monkeypatch) == {one.nodeid for one in ITEMS}
    assert turns.in_turn("abc") == ["a", "b", "c"]


@pytest.mark.parametrize("values", ["a", "ab", "abc", "abcd", "abcde"])
def test_values_that_take_turns_all_run_on_both_databases(values: str, monkeypatch: pytest.MonkeyPatch):
    """Also those of a test that is itself run every other day, on one of the two."""
    seen = set()
    for day in range(DAYS * len(values)):
        monkeypatch.setenv(turns.VARIABLE, str(day))
        of_today = [
            one for value in turns.in_turn(values) for one in on_both("tests/docs/test_wheel.py::test_a_it", value)
        ]
        waiting = turns.waiting(of_today)
        seen |= {one.nodeid for one in of_today if one not in waiting}
    assert seen == {one.nodeid for value in values for one in on_both("tests/docs/test_wheel.py::test_a_it", value)}
