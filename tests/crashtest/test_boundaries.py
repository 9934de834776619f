"""A correct pipeline, killed at every durable boundary, comes to the same each time.

HOLDFAST_CRASHTEST_ALL=1 kills at every boundary on PostgreSQL too, and more often at random.
"""

from __future__ import annotations

import os
from decimal import Decimal
from pathlib import Path

import pytest

from holdfast.crashtest.report import CrashReport, Kill
from holdfast.testing import crashtest
from tests.support.effort import effort
from tests.support.turns import set_turn

SUBJECT = Path(__file__).parent / "subjects" / "books.py"
ALL = bool(os.environ.get("HOLDFAST_CRASHTEST_ALL"))
#: Of the boundaries on PostgreSQL, where every copy takes longer: a call in doubt, effects, a submit.
CHOSEN = tuple(range(1, 30)) if ALL else (6, 12, 13, 15)
#: A paid call is begun, and perhaps made; it was made, and is not recorded; it is recorded.
INTENDED = "after the commit: books/extract: the intent of once('model')"
CALLED = "before the commit: books/extract: once('model')"
RECORDED = "after the commit: books/extract: once('model')"

#: In one process, so that it is done once for all of them.
EVERYWHERE = pytest.mark.together("everywhere")


#: Killed in the usual run: around the paid call, and at every other boundary, the rest in the next turn.
THIS_TURN = sorted({5, 6, 7, *range(1 + set_turn() % 2, 31, 2)})


@pytest.fixture(scope="module")
def everywhere() -> CrashReport:
    """Killed at every boundary, on SQLite."""
    only = THIS_TURN if effort(1, 0) else ()
    return crashtest(SUBJECT, item="v.epub", pipeline="books", setup="create", only=only)


def kill_at(report: CrashReport, place: str) -> Kill:
    """The one kill whose place begins like this."""
    [found] = [kill for kill in report.kills if kill.where.startswith(place)]
    return found


@pytest.mark.req("V1", "V2", "V5", "D4", "D5")
@pytest.mark.fault(1, 3, 4, 5)
@EVERYWHERE
def test_a_correct_pipeline_comes_to_the_same_wherever_its_worker_is_killed(everywhere: CrashReport):
    everywhere.assert_ok()
    assert everywhere
    # How many there are differs by a few: a commit that others wait for takes more of them along.
    there_are = range(1, len(everywhere.boundaries) + 1)
    assert [kill.number for kill in everywhere.kills] == (
        [number for number in THIS_TURN if number in there_are] if effort(1, 0) else [*there_are]
    )
    missed = [kill.where for kill in everywhere.kills if kill.verdict == "not reached"]
    assert len(missed) <= 1, f"not reached: {missed}"
    judge(everywhere)


@pytest.mark.req("V1", "V2", "V5", "D4", "D5")
@pytest.mark.fault(1, 3, 4, 5)
def test_the_same_holds_on_postgresql(postgres: str):
    report = crashtest(SUBJECT, item="v.epub", pipeline="books", store=postgres, setup="create", only=CHOSEN)
    report.assert_ok()
    assert sum(kill.verdict == "same" for kill in report.kills) >= len(CHOSEN) - 1
    judge(report)


def judge(report: CrashReport) -> None:
    """What an undisturbed run comes to, and that every kind of boundary was found in it."""
    assert (report.starts, report.paid, report.cost, report.tables) == (
        4,
        1,
        Decimal("0.4"),
        ["chunks", "documents", "notes"],
    )
    for place in (
        "before the commit: claim books/extract",
        "after the commit: claim books/extract",
        "as the handler starts: books/extract",
        "as the handler returns: books/chunk",
        INTENDED,
        CALLED,
        RECORDED,
        "after an effect, before the commit: books/chunk: save_document",
        "before the commit: books/chunk done, submit to pieces",
        "after an effect, before the commit: pieces/embed: save_vector",
        "after the commit: pieces/embed done",
        "after the commit: books/ready done",
    ):
        assert any(one.startswith(place) for one in report.boundaries), (place, report.boundaries)


@pytest.mark.req("D4", "D11")
@EVERYWHERE
def test_it_counts_starts_paid_calls_and_calls_in_doubt(everywhere: CrashReport):
    facts = {}
    for place in (INTENDED, CALLED, RECORDED):
        kill = kill_at(everywhere, place)
        facts[place] = (kill.starts, kill.paid, kill.in_doubt)
    assert facts == {INTENDED: (5, 1, 1), CALLED: (5, 2, 1), RECORDED: (5, 1, 0)}


@pytest.mark.req("V1", "D4")
def test_killed_at_random_it_comes_to_the_same():
    more = 50 if ALL else 3
    report = crashtest(SUBJECT, item="v.epub", pipeline="books", setup="create", only=[1], at_random=more, seed=7)
    report.assert_ok()
    assert report.seed == 7
    assert len(report.kills) == 1 + more
    assert all(kill.where.startswith("at point ") for kill in report.kills[1:])


@pytest.mark.req("D4")
def test_a_call_that_is_held_for_a_person_is_decided_as_one_would_who_finds_that_it_was_not_made():
    report = crashtest(SUBJECT, item="v.epub", pipeline="held", only=[5])
    report.assert_ok()
    [kill] = report.kills
    assert kill.where == "after the commit: held/ask: the intent of once('model')"
    assert (kill.verdict, kill.resumed, kill.paid, kill.in_doubt) == ("same", 2, 1, 1)
