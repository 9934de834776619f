"""Async engines and sessions: the same primitives, awaited; the same loop, on an event loop."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from holdfast import LeaseLost
from holdfast.adopt import (
    Job,
    Loop,
    TableMapping,
    claim,
    complete,
    fail,
    heartbeat,
    held,
    insert_once,
    release,
    requeue_stale,
    run_job_loop,
    waiting,
    with_session,
)
from holdfast.errors import UsageError
from tests.adopt.places import async_url
from tests.adopt.tables import Jobs
from tests.support.slowness import slowness

pytest.importorskip("greenlet", reason="async engines need greenlet: pip install 'sqlalchemy[asyncio]'")
pytest.importorskip("aiosqlite", reason="an async engine on SQLite needs aiosqlite")

from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession, async_sessionmaker, create_async_engine

NOON = datetime(2024, 5, 1, 12, 0, tzinfo=UTC)


@pytest.fixture
def run(url: str) -> Callable[[Callable[[AsyncEngine], Awaitable[Any]]], Any]:
    """Run a test's coroutine with an async engine."""

    @asynccontextmanager
    async def engine() -> AsyncIterator[AsyncEngine]:
        made = create_async_engine(async_url(url))
        try:
            yield made
        finally:
            await made.dispose()

    def run(test: Callable[[AsyncEngine], Awaitable[Any]]) -> Any:
        async def main() -> Any:
            async with engine() as made:
                return await asyncio.wait_for(test(made), 60)

        return asyncio.run(main())

    return run


class Base(DeclarativeBase):
    pass


class Entry(Base):
    __tablename__ = "entries"
    id: Mapped[int] = mapped_column(primary_key=True)
    slug: Mapped[str] = mapped_column(unique=True)
    status: Mapped[str] = mapped_column(default="queued")
    who: Mapped[str | None]


@pytest.mark.req("S1")
@pytest.mark.parametrize("place", ["engine", "sessionmaker", "session", "connection"])
def test_every_primitive_can_be_awaited_at_every_place(run: Any, jobs: Jobs, place: str):
    jobs.add(4)

    async def test(engine: AsyncEngine) -> None:
        async with AsyncSession(engine) as session, engine.connect() as connection:
            at: Any = {
                "engine": engine,
                "sessionmaker": async_sessionmaker(engine),
                "session": session,
                "connection": connection,
            }[place]
            rows = await claim(at, jobs.mapping, 4, now=NOON)
            assert [row.key for row in rows] == [1, 2, 3, 4]
            await heartbeat(at, rows[:3])
            await complete(at, rows[0])
            await fail(at, rows[1], "x")
            await release(at, rows[2])
            assert (await requeue_stale(at, jobs.mapping, "30m")).queued == (4,)
            assert (await waiting(at, jobs.mapping)).rows == 2
            if place in ("session", "connection"):
                await at.commit()

    run(test)
    assert [row.status for row in jobs.rows()] == ["completed", "failed", "queued", "queued"]


@pytest.mark.req("F4", "F7")
def test_an_async_session_forgets_what_was_written_beside_it(run: Any, jobs: Jobs):
    Base.metadata.create_all(jobs.engine)

    async def test(engine: AsyncEngine) -> None:
        async with AsyncSession(engine, expire_on_commit=False) as session:
            entry, created = await insert_once(session, Entry, {"slug": "sea"}, unique_on="slug")
            again, twice = await insert_once(session, Entry, {"slug": "sea"}, unique_on="slug")
            assert (created, twice) == (True, False) and again is entry
            [row] = await claim(session, TableMapping(Entry, holder="who"))
            await session.refresh(entry)
            assert (entry.status, entry.who) == ("processing", row.token)
            await complete(session, row)
            await session.commit()

    run(test)


@pytest.mark.req("F3", "F6")
def test_held_with_an_async_engine_ends_like_the_other(run: Any, jobs: Jobs):
    jobs.add(4)

    async def test(engine: AsyncEngine) -> None:
        rows = await claim(engine, jobs.mapping, 4, now=NOON)
        async with held(async_sessionmaker(engine), rows[0], beat=0.02) as unit:
            while jobs.row(1).heartbeat.replace(tzinfo=UTC) == NOON:  # the loop is not blocked for long
                await asyncio.sleep(0.01)

            async def save(session: AsyncSession) -> None:
                await session.execute(jobs.mark.insert().values(job="1"))

            unit.effect(save)
        with pytest.raises(ValueError, match="x"):
            async with held(engine, rows[1], retry="1h"):
                raise ValueError("x")
        with pytest.raises(asyncio.TimeoutError):
            async with asyncio.timeout(0.05), held(engine, rows[2]):
                await asyncio.sleep(10)

        async def lose() -> None:
            async with held(engine, rows[3], beat=0.02) as unit:
                await release(engine, rows[3])
                while not unit.lost:
                    await asyncio.sleep(0.01)

        with pytest.raises(LeaseLost):
            await lose()
        with pytest.raises(UsageError, match="async with"), held(engine, rows[3]):
            pass

    run(test)
    assert [(row.status, row.attempts) for row in jobs.rows()] == [
        ("completed", 1),
        ("queued", 1),
        ("queued", 0),
        ("queued", 0),
    ]
    assert jobs.marks() == {"1": 1}


def test_held_with_a_sync_engine_is_not_awaited(jobs: Jobs):
    jobs.add(1)
    rows = claim(jobs.engine, jobs.mapping)

    async def test() -> None:
        async with held(jobs.engine, rows):
            pass

    with pytest.raises(UsageError, match="write `with`"):
        asyncio.run(test())


@pytest.mark.req("S1", "S3")
@pytest.mark.parametrize("handler_kind", ["async", "sync"])
@pytest.mark.parametrize("engine_kind", ["async", "async sessions", "sync"])
def test_the_loop_takes_any_handler_and_any_engine(run: Any, jobs: Jobs, handler_kind: str, engine_kind: str):
    jobs.add(15)
    threads = set()

    async def save(place: Any, key: Any) -> None:
        await place.execute(jobs.mark.insert().values(job=str(key)))

    def prepare(job: Job) -> None:
        threads.add(threading.current_thread().name)
        job.effect(jobs.save_mark if engine_kind == "sync" else save, job.key)
        if job.key == 7:
            raise ValueError("seven")

    async def handle(job: Job) -> None:
        await asyncio.sleep(0)
        prepare(job)

    async def test(engine: AsyncEngine) -> None:
        at: Any = {"async": engine, "async sessions": async_sessionmaker(engine), "sync": jobs.engine}[engine_kind]
        loop = Loop(
            at, jobs.mapping, handle if handler_kind == "async" else prepare, retry=None, concurrency=3, batch=4
        )
        counters = await loop.run_async(drain=True)
        assert (counters.claimed, counters.completed, counters.failed) == (15, 14, 1)

    run(test)
    assert jobs.statuses() == {"completed": 14, "failed": 1}
    assert jobs.row(7).error == "ValueError: seven"
    assert len(jobs.marks()) == 14 and "7" not in jobs.marks()
    assert ("MainThread" in threads) == (handler_kind == "async")


def test_run_alone_starts_an_event_loop_for_an_async_handler(jobs: Jobs):
    jobs.add(3)

    async def handle(job: Job) -> None:
        await asyncio.sleep(0)

    assert Loop(jobs.engine, jobs.mapping, handle).run(drain=True).completed == 3


@pytest.mark.req("S1", "S4")
def test_run_job_loop_is_awaited_where_an_event_loop_runs(run: Any, jobs: Jobs):
    """A service with several schedulers, each with an adapter in the older style, on one event loop."""
    jobs.add(4)
    Base.metadata.create_all(jobs.engine)
    with jobs.engine.begin() as connection:
        connection.execute(sa.insert(Entry.__table__).values([{"slug": f"s{n}", "status": "queued"} for n in range(4)]))

    async def title(key: int, session: AsyncSession) -> None:
        await session.execute(sa.update(jobs.table).where(jobs.table.c.id == key).values(title="titled"))

    async def name(key: int, session: AsyncSession) -> None:
        entry = await session.get_one(Entry, key)
        entry.slug += "!"

    async def test(engine: AsyncEngine) -> None:
        await asyncio.gather(
            run_job_loop(engine, jobs.mapping, with_session(title), drain=True),
            run_job_loop(async_sessionmaker(engine), Entry, with_session(name), holder="who", drain=True),
        )

    run(test)
    assert {row.title for row in jobs.rows()} == {"titled"}
    with jobs.engine.connect() as connection:
        rows = connection.execute(sa.select(Entry.slug, Entry.status).order_by(Entry.id)).all()
    assert rows == [(f"s{n}!", "completed") for n in range(4)]


@pytest.mark.fault(9)
def test_a_stop_lets_short_tasks_finish_and_hands_the_rest_back_uncounted(run: Any, jobs: Jobs):
    jobs.add(6)

    async def test(engine: AsyncEngine) -> None:
        begun = asyncio.Semaphore(0)

        async def handle(job: Job) -> None:
            begun.release()
            while job.key == 1 or not job.stopping:
                await asyncio.sleep(0.01)

        loop = Loop(engine, jobs.mapping, handle, concurrency=2, batch=6, grace=0.5)
        task = asyncio.create_task(loop.run_async())
        for _ in range(2):
            await begun.acquire()
        loop.stop()
        started = time.monotonic()
        counters = await task
        assert time.monotonic() - started < 0.5 + 1.5 * slowness()
        assert (counters.completed, counters.released) == (1, 5)

    run(test)
    assert [(row.status, row.attempts) for row in jobs.rows()] == [
        ("queued", 0),
        ("completed", 1),
        *[("queued", 0)] * 4,
    ]


@pytest.mark.parametrize("handler_kind", ["async", "sync"])
@pytest.mark.parametrize("engine_kind", ["async", "sync"])
def test_a_loop_that_is_cancelled_hands_its_rows_back(run: Any, jobs: Jobs, handler_kind: str, engine_kind: str):
    jobs.add(2)

    async def test(engine: AsyncEngine) -> None:
        begun = threading.Event()

        async def handle(job: Job) -> None:
            begun.set()
            await asyncio.sleep(60)

        def hang(job: Job) -> None:
            begun.set()
            ended.wait(60)

        at: Any = engine if engine_kind == "async" else jobs.engine
        loop = Loop(at, jobs.mapping, handle if handler_kind == "async" else hang, grace=0)
        task = asyncio.create_task(loop.run_async())
        await asyncio.to_thread(begun.wait)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert {(row.status, row.attempts) for row in jobs.rows()} == {("queued", 0)}

    ended = threading.Event()
    try:
        run(test)
    finally:
        ended.set()


@pytest.mark.req("F6")
def test_with_a_sync_engine_the_heart_beats_while_a_handler_blocks_the_event_loop(jobs: Jobs):
    jobs.add(1)
    beats = []

    async def handle(job: Job) -> None:
        first = jobs.row(1).heartbeat
        until = time.monotonic() + 30
        while jobs.row(1).heartbeat == first and time.monotonic() < until:
            time.sleep(0.01)
        beats.append(jobs.row(1).heartbeat > first)

    Loop(jobs.engine, jobs.mapping, handle, stale_after="1s", beat=0.05).run(drain=True)
    assert beats == [True]
