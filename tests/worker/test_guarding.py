"""Guards in real workers: work begins only while all of them agree; one that raises or hangs blocks, says so, and stops nobody
else."""

from __future__ import annotations

import functools
import threading
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from holdfast import Pipeline
from holdfast.answers import Explanation
from holdfast.model.guard_conditions import Guards
from holdfast.worker.background import guards as guarding
from holdfast.worker.background.guards import GuardWatch
from tests.support import guard_functions
from tests.support.bench import Ran
from tests.support.guard_functions import says
from tests.support.kinds import keys, stage
from tests.support.limited_bench import LimitedBench
from tests.support.processes import wait_for

pytestmark = pytest.mark.req("J18")

QUIET, OTHER = f"{guard_functions.__name__}.quiet", f"{guard_functions.__name__}.other"
#: Short, so that a worker tells soon what it knows.
LEASE = 0.6


@pytest.fixture
def run(url: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[LimitedBench]:
    monkeypatch.setattr(guarding, "LOOK_SECONDS", 0.05)
    monkeypatch.setattr(guarding, "STALE_SECONDS", 0.5)
    bench = LimitedBench(url)
    yield bench
    for answer in says.values():
        if isinstance(answer, threading.Event):
            answer.set()
    bench.close()
    says.clear()


def guarded(name: str = "p", **guards: Any) -> Pipeline:
    pipeline = Pipeline(name, tuning={"guards": guards})
    stage(pipeline, "thread", lambda item, ctx: None, name=f"work-{name}")
    return pipeline


def done(ran: Ran, count: int, name: str = "p") -> bool:
    return ran.states(f"work-{name}") == {"done": count}


def refused(ran: Ran, key: str = "page-0", pipeline: str = "p") -> Explanation | None:
    """What `why` says, once it is a guard."""
    why = ran.app.why(key, pipeline)
    return why if why.reason == "guard" else None


def test_a_path_must_exist(run: LimitedBench, tmp_path: Path):
    path = tmp_path / "mounted"
    with run.serving(guarded(exists=str(path)), keys(3), lease_seconds=LEASE) as (_, ran):
        why = wait_for(lambda: refused(ran))
        assert why.text == f"the guard exists holds it back: {path} does not exist"
        assert ran.states("work-p") == {"pending": 3}
        path.touch()
        wait_for(lambda: done(ran, 3) and not _stands_still(ran, "p"))
        path.unlink()
        wait_for(lambda: _stands_still(ran, "p"))
        ran.app.add("p", ["late"])
        wait_for(lambda: refused(ran, "late"))
        assert ran.state("late", "work-p") == "pending"


@pytest.mark.req("J18", "V14")
def test_why_names_the_guard_as_soon_as_it_blocks_and_not_with_the_next_heartbeat(run: LimitedBench):
    """With such a lease, the next heartbeat is far away."""
    says["quiet"] = True
    with run.serving(guarded(handler=QUIET), keys(1), lease_seconds=600) as (_, ran):
        wait_for(lambda: done(ran, 1))
        says["quiet"] = "the editor is at lunch"
        wait_for(lambda: _stands_still(ran, "p"))
        ran.app.add("p", ["late"])
        why = wait_for(lambda: refused(ran, "late"))
        assert (why.guard, why.text) == (QUIET, f"the guard {QUIET} holds it back: the editor is at lunch")
        says["quiet"] = True
        wait_for(lambda: done(ran, 2) and not _stands_still(ran, "p"))


def test_so_much_of_the_disk_must_be_free(run: LimitedBench):
    with run.serving(guarded(disk_free="1000TB"), keys(3), lease_seconds=LEASE) as (_, ran):
        why = wait_for(lambda: refused(ran))
        assert "1000000.0 GB are wanted" in why.text
        ran.app.tune("p", {"disk_free": "1KB"})
        wait_for(lambda: done(ran, 3))


@pytest.mark.parametrize(
    ("says_no", "text"),
    [
        ("password=hunter22 is wrong", "password=*** is wrong"),
        (False, "says no"),
        (None, "says no"),
        (1, "says no"),
        ("the neighbours sleep", "the neighbours sleep"),
        (RuntimeError("broken"), "raised RuntimeError: broken"),
        (SystemExit(1), "raised SystemExit"),
        (KeyboardInterrupt(), "raised KeyboardInterrupt"),
    ],
)
def test_a_function_that_says_no_or_raises_blocks_and_it_is_told_why(run: LimitedBench, says_no, text):
    says["quiet"] = says_no
    with run.serving(guarded(handler=QUIET), keys(3), lease_seconds=LEASE) as (_, ran):
        wait_for(lambda: (why := refused(ran)) and text in why.text)
        assert ran.states("work-p") == {"pending": 3}
        says["quiet"] = True
        wait_for(lambda: done(ran, 3))


class Biting(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no")


def _hanging() -> threading.Event:
    return threading.Event()


@pytest.mark.parametrize("bad", [Biting(), SystemExit(1), "hangs"])
@pytest.mark.parametrize("from_the_start", [True, False])
def test_a_bad_guard_blocks_its_own_pipeline_and_no_other(run: LimitedBench, bad, from_the_start):
    """Also if it agreed before: silence is no consent."""
    answer = _hanging() if bad == "hangs" else bad
    says.update(quiet=answer if from_the_start else True, other=True)
    beside = guarded("q", handler=OTHER)
    run.others = [beside]
    with run.serving(guarded(handler=QUIET), keys(2), lease_seconds=LEASE) as (_, ran):
        if not from_the_start:
            wait_for(lambda: done(ran, 2) and not _stands_still(ran, "p"))
            says["quiet"] = answer
        # It is known to stand still: by what is told of it, and by what waits.
        wait_for(lambda: _stands_still(ran, "p"))
        ran.app.add("p", ["late"])
        ran.app.add("q", keys(3))
        wait_for(lambda: done(ran, 3, "q") and not _stands_still(ran, "q"))
        assert ran.states("work-p").get("pending")
        says["other"] = False
        wait_for(lambda: _stands_still(ran, "q"))
        says["quiet"] = True
        if isinstance(answer, threading.Event):
            answer.set()
        wait_for(lambda: "pending" not in ran.states("work-p"))


def _stands_still(ran: Ran, pipeline: str) -> bool:
    return any(one.pipeline == pipeline for worker in ran.app.workers() for one in worker.guards)


def test_a_guard_that_hangs_can_be_tuned_away(run: LimitedBench, tmp_path: Path):
    says["quiet"] = _hanging()
    with run.serving(guarded(handler=QUIET), keys(2), lease_seconds=LEASE) as (_, ran):
        wait_for(lambda: _stands_still(ran, "p"))
        ran.app.tune("p", {"handler": OTHER})
        says["other"] = True
        wait_for(lambda: done(ran, 2))


def test_a_guard_that_is_not_there_blocks_and_says_so(run: LimitedBench):
    with run.serving(guarded(handler="nowhere.at_all"), keys(1), lease_seconds=LEASE) as (_, ran):
        told = "the guard nowhere.at_all raised ModuleNotFoundError"
        wait_for(lambda: (why := refused(ran)) and told in why.text)
        ran.app.tune("p", {"handler": QUIET})
        says["quiet"] = True
        wait_for(lambda: done(ran, 1))


@pytest.mark.fault(54)
def test_work_begins_and_stops_with_its_hours_in_its_zone(run: LimitedBench, monkeypatch: pytest.MonkeyPatch):
    """On the night on which the clocks of New York are set: 02:30 does not exist, work begins at 03:00."""
    now = [datetime(2025, 3, 9, 6, 59, 59, tzinfo=UTC)]
    monkeypatch.setattr("holdfast.worker.worker.GuardWatch", functools.partial(GuardWatch, clock=lambda: now[0]))
    pipeline = guarded(hours="02:30-04:00", zone="America/New_York")
    with run.serving(pipeline, keys(2), lease_seconds=LEASE) as (_, ran):
        why = wait_for(lambda: refused(ran))
        assert why.text == "the guard hours holds it back: it runs from 02:30 to 04:00 (America/New_York) only"
        assert why.until == datetime(2025, 3, 9, 7, tzinfo=UTC)
        now[0] += timedelta(seconds=1)
        wait_for(lambda: done(ran, 2))
        now[0] = datetime(2025, 3, 9, 8, 0, tzinfo=UTC)
        again = datetime(2025, 3, 10, 6, 30, tzinfo=UTC)
        wait_for(lambda: again in _held_until(ran))
        ran.app.add("p", ["late"])
        assert wait_for(lambda: refused(ran, "late")).until == again


def _held_until(ran: Ran) -> list[datetime | None]:
    return [one.until for worker in ran.app.workers() for one in worker.guards]


def test_all_guards_must_agree(run: LimitedBench, tmp_path: Path):
    says.update(quiet=True, other=False)
    path = tmp_path / "here"
    with run.serving(guarded(exists=str(path), handler=[QUIET, OTHER]), keys(2), lease_seconds=LEASE) as (_, ran):
        assert "does not exist" in wait_for(lambda: refused(ran)).text
        path.touch()
        wait_for(lambda: (said := refused(ran)) and "other says no" in said.text)
        says["other"] = True
        wait_for(lambda: done(ran, 2))


def test_nothing_begins_before_the_guards_were_looked_at(run: LimitedBench):
    says["quiet"] = _hanging()
    with run.serving(guarded(handler=QUIET), keys(2), lease_seconds=LEASE) as (_, ran):
        time.sleep(0.3)
        assert ran.states("work-p") == {"pending": 2}
        says["quiet"].set()
        wait_for(lambda: done(ran, 2))


def test_a_pipeline_without_guards_goes_on_beside_one_that_stands_still(run: LimitedBench):
    says["quiet"] = False
    free = Pipeline("q")
    stage(free, "thread", lambda item, ctx: None, name="work-q")
    run.others = [free]
    with run.serving(guarded(handler=QUIET), keys(2), lease_seconds=LEASE) as (_, ran):
        ran.app.add("q", keys(3))
        wait_for(lambda: done(ran, 3, "q"))
        assert ran.states("work-p") == {"pending": 2}


@pytest.mark.parametrize("path", ["x" * 5000, "a\0b", "/proc/1/root/secret"])
def test_a_path_that_cannot_be_looked_at_blocks_and_says_so(run: LimitedBench, path: str):
    with run.serving(guarded(exists=path), keys(1), lease_seconds=LEASE) as (_, ran):
        assert " holds it back: " in wait_for(lambda: refused(ran)).text
        assert ran.states("work-p") == {"pending": 1}


def test_a_guard_says_since_when_it_holds_work_back():
    """Checks follow one another: it is the first of those that refused."""
    now = datetime(2026, 2, 1, 12, tzinfo=UTC)
    clock = [now]
    watch = GuardWatch(lambda: {"p": Guards.read({"hours": "22:00-06:00"})}, lambda: None, clock=lambda: clock[0])
    for minutes in (0, 1, 5):
        clock[0] = now + timedelta(minutes=minutes)
        watch.one_pass()
        wait_for(lambda: any("22:00" in one["text"] for one in watch.facts()))
    [told] = watch.facts()
    assert told["since"] == round(now.timestamp() * 1e6)
    clock[0] = now.replace(hour=23)
    watch.one_pass()
    wait_for(lambda: not watch.facts())
    watch.one_pass()
    clock[0] = now + timedelta(days=1)
    watch.one_pass()
    wait_for(lambda: watch.facts() != [])
    watch.one_pass()
    assert watch.facts()[0]["since"] == round(clock[0].timestamp() * 1e6)
