"""A worker is killed around the commit that writes what handlers had to tell: each attempt has told once, or not at all."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.support.processes import Crew

ITEMS = 12


@pytest.mark.req("J9", "V2", "V3")
@pytest.mark.fault(1)
@pytest.mark.parametrize("at", ["run.after:5", "store.add_events:3", "commit.before:4", "commit.after:4"])
def test_a_run_whose_result_stands_has_told_once_and_one_that_was_lost_has_told_nothing(
    hire: Callable[[str], Crew], at: str
):
    crew = hire("eventful_books")
    crew.add(f"book-{n:02}" for n in range(ITEMS))
    killed = crew.start("victim", lease=1.0, crash_at=at)
    assert killed.wait() == -9
    crew.start("survivor", lease=1.0)
    crew.wait_until_done()
    crew.judge()
    marks = [(one.item, one.stage, one.data["mark"]) for one in crew.app.events(event="user.ran", most=10_000)]
    stand = [
        (key, one.stage, one.result["mark"])
        for key in sorted({key for key, _ in crew.states()})
        for one in crew.app.show(key).stages
    ]
    assert sorted(marks) == sorted(stand) and len(stand) == 3 * ITEMS
