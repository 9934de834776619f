"""`add_async` inside the transaction of an async program: its AsyncConnection, its AsyncSession, or the driver's own."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import aiosqlite
import psycopg
import pytest
import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, AsyncSession, create_async_engine

from holdfast import Context, Holdfast, Item, Pipeline, UsageError, aio
from holdfast.store.postgres_address import read_url
from holdfast.store.sqlite_files import file_of
from tests.support.event_loops import run_loop
from tests.support.own_tables import OwnTables
from tests.support.waiting import STUCK_SECONDS, wait_for

#: So many that PostgreSQL gets them by COPY.
MANY = [{"key": f"page-{n:03}", "n": n} for n in range(50)]


@pytest.fixture
def books(url: str) -> Pipeline:
    books = Pipeline("books", store=url)

    @books.stage()
    def work(item: Item, ctx: Context) -> Any:
        return item.data["n"]

    books.register()
    return books


@pytest.fixture
def own(url: str) -> OwnTables:
    return OwnTables(url)


def engine_of(url: str) -> AsyncEngine:
    if url.startswith("sqlite:"):
        return create_async_engine(f"sqlite+aiosqlite:///{file_of(url)}")
    conninfo = read_url(url)[0]
    return create_async_engine(
        "postgresql+psycopg://", async_creator=lambda: psycopg.AsyncConnection.connect(conninfo, prepare_threshold=None)
    )


@asynccontextmanager
async def transaction(url: str, how: str) -> AsyncIterator[Any]:
    """A transaction of the program's, as it is known to SQLAlchemy or to the driver."""
    if how == "raw":
        connect = (
            aiosqlite.connect(file_of(url))
            if url.startswith("sqlite:")
            else psycopg.AsyncConnection.connect(read_url(url)[0])
        )
        raw: Any = await connect
        try:
            yield raw
        finally:
            await raw.close()
        return
    engine = engine_of(url)
    async with AsyncSession(engine) if how == "session" else engine.connect() as place:
        yield place
    await engine.dispose()


def keys(url: str) -> list[str]:
    with Holdfast(url) as app:
        assert app.check() == []
        return [one.key for one in app.items(most=1000)]


async def waiting_of(url: str, session: AsyncSession) -> Callable[[], object]:
    """Whether the session waits for the transaction of another, which has written: to be asked in a thread."""
    if url.startswith("sqlite:"):
        sent: list[str] = []
        raw = await (await session.connection()).get_raw_connection()
        await raw.driver_connection.set_trace_callback(sent.append)
        # One writes at a time.
        return lambda: [one for one in sent if one.startswith(("BEGIN IMMEDIATE", "INSERT", "UPDATE", "DELETE"))]
    process = await session.scalar(sa.text("SELECT pg_backend_pid()"))
    waits = f"SELECT 1 FROM pg_stat_activity WHERE pid = {process} AND wait_event_type = 'Lock'"

    def ask() -> object:
        with psycopg.connect(read_url(url)[0]) as conn:
            return conn.execute(waits).fetchone()

    return ask


async def note(place: Any, own: OwnTables, key: str) -> None:
    """A row of the program's own, in the same transaction."""
    if isinstance(place, AsyncConnection | AsyncSession):
        await place.execute(own.note.insert().values(key=key))
    else:
        mark = "%s" if own.schema else "?"
        await place.execute(f"INSERT INTO {own.note.fullname} (key) VALUES ({mark})", (key,))


@pytest.mark.req("V2", "P16")
@pytest.mark.parametrize("commit", [True, False], ids=["committed", "rolled back"])
@pytest.mark.parametrize("how", ["connection", "session", "raw"])
def test_items_share_the_fate_of_the_async_transaction(
    url: str, books: Pipeline, own: OwnTables, how: str, commit: bool
):
    async def main() -> None:
        async with transaction(url, how) as place:
            await note(place, own, "before")
            assert (await books.add_async(MANY, connection=place)).new == len(MANY)
            await note(place, own, "after")
            assert await asyncio.to_thread(keys, url) == [], "nothing is visible before the commit"
            await (place.commit() if commit else place.rollback())
        if commit:
            assert (await books.run_async()).failed == 0

    run_loop(main)
    assert keys(url) == ([one["key"] for one in MANY] if commit else [])
    assert own.keys() == (["after", "before"] if commit else [])
    if commit:
        with Holdfast(url) as app:
            assert app.show("page-007").stage("work").result == 7


@pytest.mark.req("V2", "P16")
def test_the_async_app_adds_there_too_also_on_a_connection_that_has_done_nothing_else(url: str, books: Pipeline):
    async def main() -> None:
        async with aio.Holdfast(url, [books.spec]) as hold, transaction(url, "connection") as place:
            await hold.add("books", MANY[:1], connection=place)
            await place.commit()
            await hold.add("books", MANY[1:2], connection=place)
            await place.rollback()

    run_loop(main)
    assert keys(url) == ["page-000"]


@pytest.mark.req("P16")
def test_two_requests_that_share_an_app_do_not_block_each_other_or_the_loop(url: str, books: Pipeline):
    """The second waits for the first one's transaction, and the first goes on adding."""

    async def main() -> None:
        async with (
            aio.Holdfast(url, [books.spec]) as hold,
            transaction(url, "session") as first,
            transaction(url, "session") as second,
        ):
            await hold.add("books", MANY[:1], connection=first)
            is_waiting = await waiting_of(url, second)
            waiting = asyncio.create_task(hold.add("books", MANY[:1], connection=second))
            await asyncio.to_thread(wait_for, is_waiting)
            await hold.add("books", MANY[1:2], connection=first)
            await first.commit()
            await asyncio.wait_for(waiting, STUCK_SECONDS)
            await second.commit()

    run_loop(main)
    assert keys(url) == ["page-000", "page-001"]


@pytest.mark.req("P16")
def test_a_cancelled_request_can_roll_back_and_nothing_comes_after(url: str, books: Pipeline, own: OwnTables):
    """It is cancelled while it waits for another's transaction. Its session is in order, and can be used again."""

    async def main() -> None:
        async with transaction(url, "session") as first, transaction(url, "session") as second:
            await books.add_async(MANY[:1], connection=first)
            is_waiting = await waiting_of(url, second)
            waiting = asyncio.create_task(books.add_async(MANY[:1], connection=second))
            await asyncio.to_thread(wait_for, is_waiting)
            waiting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await waiting
            await second.rollback()
            await first.rollback()
            await note(second, own, "later")
            await books.add_async(MANY[1:2], connection=second)
            await second.commit()

    run_loop(main)
    assert keys(url) == ["page-001"]
    assert own.keys() == ["later"]


@pytest.mark.req("V12", "P16")
def test_a_sync_add_refuses_an_async_connection_and_says_what_to_do(url: str, books: Pipeline):
    async def main() -> None:
        async with transaction(url, "session") as place:
            with pytest.raises(UsageError, match=r"the connection is async: add with `await pipeline\.add_async"):
                books.add(MANY, connection=place)

    run_loop(main)


@pytest.mark.req("V12", "P16")
def test_an_async_connection_to_another_database_is_refused(url: str, books: Pipeline):
    async def main() -> None:
        engine = create_async_engine("sqlite+aiosqlite://")
        async with engine.connect() as place:
            await place.execute(sa.text("SELECT 1"))
            with pytest.raises(UsageError, match=r"the store is|is needed, not a"):
                await books.add_async(MANY, connection=place)
        await engine.dispose()

    run_loop(main)
    assert keys(url) == []
