"""One scenario again and again, struck at the n-th call of the store, for every n until it passes untouched.

Killed there, resumed by another process: nothing is lost, and what had been completed does not run again. Failed there
by the database, or left without a reply: the worker goes on by itself, and no attempt is burned.
"""

from __future__ import annotations

import itertools
import json
import os
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from holdfast.answers import StageOfItem
from holdfast.store import Store, open_store
from tests.crash.scenario import KEYS
from tests.support.effort import effort
from tests.support.mother import Forked
from tests.support.processes import STUCK_SECONDS, Crew
from tests.support.steps import quick_url, wipe

#: Two processes at a time, one per core.
LANES = 2
#: Calls to go on by after a kill: with 1 every one is struck.
STEP = effort(11, 1)
#: No scenario makes so many calls; one that does never ends.
MOST_CALLS = 3000


class Lane:
    """A store of its own, on which the scenario is run whenever asked."""

    def __init__(self, url: str, folder: Path) -> None:
        folder.mkdir()
        self._url = url
        self._folder = folder
        self._runs = itertools.count()
        self._store: Store = open_store(url)
        self._store.upgrade()

    @contextmanager
    def fresh(self) -> Iterator[Crew]:
        """Nothing in the store, nothing in the ledger."""
        wipe(self._store)
        folder = self._folder / str(next(self._runs))
        folder.mkdir()
        crew = Crew(self._url, folder, "tests.crash.scenario:sweep")
        try:
            yield crew
        except AssertionError as error:
            said = folder / "said"
            raise AssertionError(f"{error}\nthe process said: {said.read_text() if said.exists() else ''}") from error
        finally:
            crew.end()

    def run(self, crew: Crew, **fault: object) -> int:
        """Run the scenario in a process of its own; how that ended."""
        order = {"url": self._url, "ledger": str(crew.ledger.path), **fault}
        with (crew.ledger.path.parent / "said").open("ab") as said:
            return Forked("tests.crash.scenario", [json.dumps(order)], os.environ, stdout=said).wait(STUCK_SECONDS)

    def close(self) -> None:
        self._store.close()


@pytest.fixture
def lanes(database: str, request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[list[Lane]]:
    with ExitStack() as stack:
        made = []
        for number in range(LANES):
            url = stack.enter_context(quick_url(database, request))
            made.append(Lane(url, tmp_path / str(number)))
            stack.callback(made[-1].close)
        yield made


def sweep(lanes: list[Lane], strike: Callable[[Lane, int], bool], numbers: Iterator[int]) -> int:
    """Strike at one number after the other, until a strike finds nothing to hit; return how many hit."""
    lock = threading.Lock()
    over = threading.Event()
    hits = 0

    def serve(lane: Lane) -> None:
        nonlocal hits
        while not over.is_set():
            with lock:
                n = next(numbers)
            assert n < MOST_CALLS
            try:
                hit = strike(lane, n)
            except BaseException as error:
                over.set()
                raise AssertionError(f"struck at call {n}: {error}") from error
            with lock:
                hits += hit
            if not hit:
                over.set()

    with ThreadPoolExecutor(len(lanes)) as pool:
        for done in [pool.submit(serve, lane) for lane in lanes]:
            done.result()
    return hits


def everything_is_done(crew: Crew) -> dict[tuple[str, str], StageOfItem]:
    """Judged by the ledger; each stage of each item, as it is shown."""
    crew.judge()
    stages = {(key, one.stage): one for key in KEYS for one in crew.app.show(key).stages}
    assert len(stages) == len(KEYS) * 4
    assert {one.state for one in stages.values()} == {"done"}
    for line in crew.ledger.lines("saw"):
        stage, mark = line.seen.split()
        assert stages[line.key, stage].result["mark"] == mark, f"{line.key}: {line.stage} was built on another {stage}"
    return stages


@pytest.mark.req("V1", "V2", "V5")
@pytest.mark.fault(1, 3, 4)
def test_a_process_killed_at_any_call_of_the_store_is_resumed_by_the_next(lanes):
    def kill(lane: Lane, n: int) -> bool:
        with lane.fresh() as crew:
            code = lane.run(crew, crash_at=f"store:{n}")
            if code == 0:
                everything_is_done(crew)
                return False
            assert code == -9
            done = {place for place, state in crew.states().items() if state == "done"}
            killed = {line.pid for line in crew.ledger.lines()}
            assert lane.run(crew) == 0
            everything_is_done(crew)
            again = {(line.key, line.stage) for line in crew.ledger.starts() if line.pid not in killed} & done
            assert not again, f"had been completed, and ran again: {again}"
            return True

    hits = sweep(lanes, kill, itertools.count(1, STEP))
    assert hits > 60 / STEP, f"the scenario makes {hits} calls only: it is not the one that was meant"


@pytest.mark.req("V2", "V6", "V7")
@pytest.mark.fault(26)
@pytest.mark.parametrize(
    ("fault", "every"), [("fail_at", effort(13, 3)), ("lose", effort(7, 2))], ids=["fail_at", "lose"]
)
def test_a_store_that_fails_any_call_once_costs_no_attempt(lanes, fault, every):
    def strike(lane: Lane, n: int) -> bool:
        with lane.fresh() as crew:
            assert lane.run(crew, **{fault: n}) == 0
            for (key, stage), shown in everything_is_done(crew).items():
                expected = 2 if (key, stage) == ("k1", "parse") else 1
                assert shown.attempts == expected, f"{key}, {stage} burned an attempt"
                assert len(crew.ledger.starts(key, stage)) == expected, f"{key}, {stage} ran more often"
            return bool(crew.ledger.lines("struck"))

    hits = sweep(lanes, strike, itertools.count(1, every))
    assert hits >= 3, f"only {hits} calls were struck: it is not the scenario that was meant"
