"""An idle worker learns of new work at once, on both databases, though it looks by itself only once a minute."""

from __future__ import annotations

import statistics
import time

import pytest

from tests.support.processes import Crew, wait_for
from tests.support.slowness import slowness

#: Much less than a minute; most often it is a few milliseconds.
SOON = 1.0


@pytest.mark.fault(37)
@pytest.mark.req("V7")
def test_an_idle_worker_starts_new_work_at_once(crew: Crew):
    crew.start("w", poll=60, lease=30)
    crew.add(["warm-up"])
    crew.wait_until_done()
    took = []
    for number in range(5):
        added_at = time.monotonic()
        crew.add([f"page-{number}"])
        [line] = wait_for(lambda: crew.ledger.starts(f"page-{number}", "fetch"), every=0.005)  # noqa: B023
        took.append(line.at - added_at)
    assert max(took) < SOON * slowness()
    assert statistics.median(took) < SOON / 2 * slowness()


@pytest.mark.req("V7")
def test_idle_workers_hear_of_work_that_another_leaves_for_them(crew: Crew):
    """One offers only the first stage, the other only the rest: each stage wakes the next."""
    first = crew.start("first", poll=60, lease=30, stages="fetch")
    rest = crew.start("rest", poll=60, lease=30, stages="extract save")
    began = time.monotonic()
    crew.add(["page"])
    crew.wait_until_done()
    assert time.monotonic() - began < 2 * SOON * slowness()
    assert [(line.stage, line.pid) for line in crew.ledger.starts("page")] == [
        ("fetch", first.pid),
        ("extract", rest.pid),
        ("save", rest.pid),
    ]
    crew.judge()
