"""`kill -9` at every named point of a worker's cycle, the first, second and third time it comes there (V5)."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest

from holdfast.points import WORKER_POINTS
from tests.support.effort import effort
from tests.support.processes import LEASE_SECONDS, POLL_SECONDS, RECOVERY_SECONDS, Crew, crew_on, wait_for
from tests.support.slowness import slowness
from tests.support.steps import quick_url

TIMES = (1, 2, 3)[: effort(2, 3)]


def pages(batch: int) -> list[dict[str, str]]:
    acts = dict.fromkeys(("fetch", "extract", "save"), "sleep 0.02")
    return [{"key": f"page-{batch}-{n}", **acts} for n in range(8)]


@pytest.fixture
def crews(database: str, request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[list[Crew]]:
    """One crew for each time, each on a store of its own: they mostly wait."""
    with ExitStack() as stack:
        made = []
        for number in TIMES:
            folder = tmp_path / str(number)
            folder.mkdir()
            made.append(stack.enter_context(crew_on(stack.enter_context(quick_url(database, request)), folder)))
        yield made


def kill_at(crew: Crew, point: str, nth: int) -> None:
    # The first time as on another machine, where only silence tells that a worker is dead.
    survivor = crew.start("survivor", far=nth == 1, lease=LEASE_SECONDS)
    victim = crew.start("victim", far=nth == 1, lease=LEASE_SECONDS, crash_at=f"{point}:{nth}")
    batches = itertools.count()
    # Whoever wakes first takes the first items: there are more until the victim has had its share.
    while victim.is_alive and (batch := next(batches)) < 50:
        crew.add(pages(batch))
        with suppress(AssertionError):
            wait_for(lambda: not victim.is_alive, timeout=0.3)
    assert victim.wait() == -9
    died = time.monotonic()
    crew.wait_until_done()
    crew.judge()
    begun = {(line.key, line.stage): line for line in crew.ledger.starts() if line.pid == victim.pid}
    ended = {(line.key, line.stage) for line in crew.ledger.ends() if line.pid == victim.pid}
    for place in begun.keys() - ended:
        again = [line.at for line in crew.ledger.starts(*place) if line.pid != victim.pid]
        assert again, f"{place} was begun by the victim, and by nobody after it"
        late = min(again) - died
        assert late <= RECOVERY_SECONDS * slowness(), f"{place} ran again {late:.2f} s after its worker had died"
    assert survivor.is_alive, survivor.said


@pytest.mark.req("V1", "V5")
@pytest.mark.fault(1, 3, 4, 5)
@pytest.mark.parametrize("point", WORKER_POINTS)
def test_work_of_a_worker_killed_at_a_named_point_runs_again_in_time(crews, point):
    assert RECOVERY_SECONDS == 2 * LEASE_SECONDS + POLL_SECONDS
    with ThreadPoolExecutor(len(TIMES)) as pool:
        for done in [pool.submit(kill_at, crew, point, nth) for crew, nth in zip(crews, TIMES, strict=True)]:
            done.result()
