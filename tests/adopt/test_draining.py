"""A drain ends when nothing is left: it waits for what others hold and for what is due soon, and says what it leaves."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy import Engine
from sqlalchemy.ext.asyncio import create_async_engine

from holdfast.adopt import Counters, Job, Left, Loop, claim, complete
from holdfast.adopt.loop import sync_or_async_engine
from holdfast.adopt.loop.loop import run_together
from holdfast.adopt.rows.sql import has_last_attempts
from tests.adopt.places import async_url
from tests.adopt.racers import Race
from tests.adopt.tables import EVERY, Jobs
from tests.adopt.test_loop import refuse
from tests.support.processes import wait_for

#: A few claims and looks; one that asked all the time would need hundreds.
FEW_STATEMENTS = 20


def nothing(job: Job) -> None:
    """A handler."""


class Drain:
    """A drain in a thread: what it said and what it came to."""

    def __init__(self, loop: Loop, caplog: pytest.LogCaptureFixture) -> None:
        caplog.set_level(logging.INFO, "holdfast.adopt")
        self._loop, self._caplog = loop, caplog
        self.counters: Counters | None = None
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        self.counters = self._loop.run(drain=True, signals=False)

    def waits_for(self, what: str) -> None:
        wait_for(lambda: f"waiting for rows: {what}" in self._caplog.text)
        assert self._thread.is_alive()

    def end(self) -> Counters:
        self._thread.join(60)
        assert self.counters is not None
        return self.counters

    def stop(self) -> None:
        self._loop.stop()
        self._thread.join(60)


@pytest.fixture
def drain(caplog: pytest.LogCaptureFixture) -> Iterator[Callable[[Loop], Drain]]:
    begun: list[Drain] = []

    def begin(loop: Loop) -> Drain:
        begun.append(Drain(loop, caplog))
        return begun[-1]

    yield begin
    for one in begun:
        one.stop()


@pytest.fixture
def race(url: str, tmp_path: Path) -> Iterator[Race]:
    race = Race(url, tmp_path)
    yield race
    race.end()


@pytest.fixture(params=["threads", "tasks", "async engine"])
def how(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def drained(how: str, jobs: Jobs, handler: Callable[[Job], Any], **settings: Any) -> Counters:
    """Drain in each of the ways in which a loop can be run."""
    if how == "threads":
        return Loop(jobs.engine, jobs.mapping, handler, **settings).run(drain=True)

    async def awaited(job: Job) -> Any:
        return handler(job)

    if how == "tasks":
        return Loop(jobs.engine, jobs.mapping, awaited, **settings).run(drain=True)

    async def run() -> Counters:
        engine = create_async_engine(async_url(jobs.engine.url.render_as_string(hide_password=False)))
        try:
            return await Loop(engine, jobs.mapping, awaited, **settings).run_async(drain=True)
        finally:
            await engine.dispose()

    return asyncio.run(run())


# Rows of others -------------------------------------------------------------------------------------------------------


@pytest.mark.req("S2", "S5")
def test_a_drain_waits_for_a_row_of_another_process_until_that_ends(engine: Engine, race: Race, tmp_path: Path):
    jobs = Jobs(engine, max_attempts=100)
    gate = tmp_path / "gate"
    jobs.add(0, {"title": f"until {gate}"}, {"title": "quick"})
    busy = race.start("--batch", "1", "--concurrency", "1")
    wait_for(lambda: jobs.row(1).status == "processing")
    waits = race.start("--drain", "--stale", "60")
    wait_for(lambda: "waiting for rows: 1 held by others" in waits.said)
    assert waits.is_alive
    gate.touch()
    assert waits.wait() == 0
    assert jobs.statuses() == {"completed": 2}
    assert waits.counters["left"] == {"held": 0, "later": 0, "refused": 0}
    assert busy.stop() == 0 and busy.counters["left"] is None


@pytest.mark.req("S2", "S5")
@pytest.mark.fault(6)
def test_a_drain_does_what_a_process_that_died_meanwhile_has_left(engine: Engine, race: Race, tmp_path: Path):
    jobs = Jobs(engine, max_attempts=100)
    gate = tmp_path / "gate"
    jobs.add(0, {"title": f"until {gate}"})
    dies = race.start()
    wait_for(lambda: jobs.row(1).status == "processing")
    waits = race.start("--drain")
    wait_for(lambda: "waiting for rows: 1 held by others" in waits.said)
    dies.kill()
    gate.touch()
    assert waits.wait() == 0
    assert jobs.statuses() == {"completed": 1}
    assert (waits.counters["recovered"], waits.counters["completed"]) == (1, 1)


@pytest.mark.parametrize("columns", [(), ("holder", "started")])
def test_held_rows_of_which_nobody_can_tell_whether_they_are_stale_are_left_and_reported(
    engine: Engine, columns: tuple[str, ...], caplog: pytest.LogCaptureFixture
):
    """There is no time column, or no time in the row."""
    jobs = Jobs(engine, columns)
    jobs.add(3)
    claim(engine, jobs.mapping, 2)
    if columns:
        jobs.set(jobs.table.c.status == "processing", started=None)
    counters = Loop(engine, jobs.mapping, nothing).run(drain=True)
    assert jobs.statuses() == {"processing": 2, "completed": 1}
    assert counters.left == Left(held=2)
    assert "left 2 (2 held by others)" in caplog.text


@pytest.mark.parametrize("database", ["postgres"])  # on SQLite whoever claims waits for the one who writes
def test_a_drain_waits_for_rows_that_somebody_has_locked(jobs: Jobs, drain: Callable[[Loop], Drain]):
    jobs.add(2)
    with jobs.engine.begin() as connection:
        connection.execute(sa.select(jobs.table).where(jobs.table.c.id == 1).with_for_update())
        running = drain(Loop(jobs.engine, jobs.mapping, nothing, poll=0.02))
        running.waits_for("1 that can be claimed")
    assert running.end().completed == 2


@pytest.mark.req("S4")
def test_a_drain_waits_for_its_place_among_the_instances(jobs: Jobs, drain: Callable[[Loop], Drain]):
    jobs.add(3)
    [row] = claim(jobs.engine, jobs.mapping)
    running = drain(Loop(jobs.engine, jobs.mapping, nothing, max_instances=1, poll=0.02))
    running.waits_for("2 that can be claimed, 1 held by others")
    complete(jobs.engine, row)
    assert running.end().completed == 2
    assert jobs.statuses() == {"completed": 3}


def test_a_drain_does_not_wait_for_a_place_that_may_never_be_free(engine: Engine):
    jobs = Jobs(engine, ("holder",))
    jobs.add(3)
    claim(engine, jobs.mapping)
    counters = Loop(engine, jobs.mapping, nothing, max_instances=1).run(drain=True)
    assert counters.left == Left(held=3)


# Rows that are not due ------------------------------------------------------------------------------------------------


@pytest.mark.req("S5")
@pytest.mark.parametrize("columns", [EVERY, ("attempts", "error")])
def test_a_retry_that_is_due_soon_is_done_by_the_drain_which_meanwhile_asks_the_database_next_to_nothing(
    engine: Engine, how: str, columns: tuple[str, ...]
):
    """With a column that says when it is due, and without one, where only this process knows."""
    jobs = Jobs(engine, columns)
    jobs.add(1)
    asked: list[str] = []
    at: list[int] = []

    def handler(job: Job) -> None:
        at.append(len(asked))
        if job.attempt < 2:
            raise OSError("busy")

    with heard(Engine if how == "async engine" else engine, asked):
        counters = drained(how, jobs, handler, retry=0.7, poll="10m")
    assert jobs.statuses() == {"completed": 1}
    assert (counters.retried, counters.completed, counters.left) == (1, 1, Left())
    assert 0 < at[1] - at[0] < FEW_STATEMENTS


@contextmanager
def heard(engine: Any, asked: list[str]) -> Iterator[None]:
    def note(connection: Any, cursor: object, statement: str, *_: object) -> None:
        asked.append(statement)

    sa.event.listen(engine, "before_cursor_execute", note)
    yield
    sa.event.remove(engine, "before_cursor_execute", note)


@pytest.mark.req("S5")
@pytest.mark.parametrize("columns", [EVERY, ("attempts", "error")])
def test_a_retry_that_is_due_much_later_is_left_and_reported(
    engine: Engine, how: str, columns: tuple[str, ...], caplog: pytest.LogCaptureFixture
):
    jobs = Jobs(engine, columns)
    jobs.add(3)

    def handler(job: Job) -> None:
        if job.key == 2:
            raise OSError("busy")

    counters = drained(how, jobs, handler, retry="1h")
    assert jobs.statuses() == {"completed": 2, "queued": 1}
    assert counters.left == Left(later=1) and counters.left.rows == 1
    assert "completed 2, retried 1, left 1 (1 due later), errors: 1 × OSError: busy" in caplog.text


def test_a_drain_waits_for_a_row_that_another_one_will_retry_soon_and_leaves_what_is_due_later(
    jobs: Jobs, drain: Callable[[Loop], Drain]
):
    now = datetime.now(UTC)
    jobs.add(0, {"next_attempt": now + timedelta(seconds=50)}, {"next_attempt": now + timedelta(hours=1)})
    running = drain(Loop(jobs.engine, jobs.mapping, nothing, poll=0.02))
    running.waits_for("1 due soon")
    jobs.set(jobs.table.c.id == 1, next_attempt=now)
    assert running.end().left == Left(later=1)
    assert jobs.statuses() == {"completed": 1, "queued": 1}


def test_rows_behind_a_batch_that_the_database_refuses_are_done(jobs: Jobs, how: str):
    """Nothing was claimed is not the same as nothing is there."""
    jobs.add(10)
    refuse(jobs, "true" if jobs.engine.dialect.name == "postgresql" else "1")
    counters = drained(how, jobs, nothing, batch=1, poll=0.01)
    assert jobs.statuses() == {"completed": 9, "queued": 1}
    assert counters.left == Left(refused=1)


def test_a_drain_ends_as_soon_as_nothing_is_left(jobs: Jobs, monkeypatch: pytest.MonkeyPatch):
    """Rows may have a last attempt, which runs alone: that there is none was found out a moment later."""
    jobs.add(25)
    waits: list[bool] = []
    wait = sync_or_async_engine.Bell.wait

    def noted(bell: sync_or_async_engine.Bell, seconds: float) -> bool:
        waits.append(wait(bell, 4.0))
        return waits[-1]

    monkeypatch.setattr(sync_or_async_engine.Bell, "wait", noted)
    loop = Loop(jobs.engine, jobs.mapping, lambda job: None, batch=10, stale_after=None)
    assert has_last_attempts(jobs.mapping)
    assert loop.run(drain=True).completed == 25
    assert waits and all(waits), "it waited for a time to pass"


def test_a_drain_ends_among_more_refused_rows_than_it_can_remember(jobs: Jobs, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("holdfast.adopt.loop.state.MOST_ASIDE", 10)
    many = 15
    with jobs.engine.begin() as connection:
        connection.execute(jobs.table.insert(), [{"id": 20 * n + 7, "status": "queued"} for n in range(many)])
    refuse(jobs, "true" if jobs.engine.dialect.name == "postgresql" else "1")
    counters = Loop(jobs.engine, jobs.mapping, nothing, batch=4, poll=0.01).run(drain=True)
    assert counters.left == Left(refused=many)


# Several loops --------------------------------------------------------------------------------------------------------


@pytest.mark.req("S6")
@pytest.mark.parametrize("how", ["threads", "tasks"])
def test_a_drain_of_several_loops_does_what_one_of_them_makes_for_another(engine: Engine, how: str):
    jobs, links = Jobs(engine), Jobs(engine, name="links")
    jobs.add(1)
    ended = threading.Event()

    def make(job: Job) -> None:
        assert ended.wait(30)
        job.effect(lambda connection: connection.execute(links.table.insert().values(status="queued")))

    async def follow(job: Job) -> None:
        """On an event loop of the same process."""

    class Follower(Loop):
        async def run_async(self, **given: Any) -> Counters:
            counters = await super().run_async(**given)
            ended.set()
            return counters

        def run(self, **given: Any) -> Counters:
            counters = super().run(**given)
            ended.set()
            return counters

    follower = Follower(engine, links.mapping, follow if how == "tasks" else nothing)
    assert run_together([Loop(engine, jobs.mapping, make), follower], drain=True) is None
    assert links.statuses() == {"completed": 1}
