"""Loops over an engine whose sessions a transaction pooler hands round: its driver prepares nothing there."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
import sqlalchemy as sa
from psycopg import sql
from sqlalchemy import Engine

from holdfast.adopt import Job, Loop, with_session
from tests.adopt.places import engine_on
from tests.adopt.racers import Race
from tests.adopt.tables import Jobs
from tests.support.pooler import Pooler
from tests.support.processes import wait_for
from tests.support.schemas import bare_schema

#: So often that any of its statements would have been prepared.
ROWS = 60
PREPARED = sa.text("SELECT name FROM pg_prepared_statements")

pytestmark = [pytest.mark.fault(36), pytest.mark.req("P8")]


@pytest.fixture
def database() -> str:
    return "postgres"


@pytest.fixture
def sessions() -> int:
    return 2


@pytest.fixture
def pooler(postgres: str, sessions: int) -> Iterator[Pooler]:
    with Pooler(postgres, sessions) as pooler:
        yield pooler


@pytest.fixture
def url(postgres: str, pooler: Pooler) -> Iterator[str]:
    """A database of its own: no pooler carries on whose search path a session has."""
    name = f"d{secrets.token_hex(6)}"
    with psycopg.connect(postgres, autocommit=True) as admin:
        admin.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(name)))
        yield pooler.through(f"postgresql+psycopg:///{name}")
        admin.execute(sql.SQL("DROP DATABASE {} WITH (FORCE)").format(sql.Identifier(name)))


@pytest.fixture
def engine(url: str) -> Iterator[Engine]:
    """The test's own way in, on which nothing is prepared."""
    engine = engine_on(url, connect_args={"prepare_threshold": None})
    yield engine
    engine.dispose()


@pytest.fixture
def plain(url: str) -> Iterator[Engine]:
    """An engine as people make it."""
    engine = engine_on(url)
    yield engine
    engine.dispose()


@pytest.mark.req("S3")
def test_loops_of_several_processes_complete_every_row_once_and_spend_no_attempt(
    url: str, engine: Engine, tmp_path: Path
):
    jobs = Jobs(engine, max_attempts=100)
    with engine.begin() as connection:
        rows = [{"title": "quick", "status": "queued", "created_as": str(n)} for n in range(5 * ROWS)]
        connection.execute(jobs.table.insert(), rows)
    race = Race(url, tmp_path)
    try:
        for _ in range(3):
            race.start("--drain", "--batch", "5")
        assert [racer.wait() for racer in race.racers] == [0, 0, 0], race.all_said()
    finally:
        race.end()
    assert jobs.statuses() == {"completed": 5 * ROWS}
    assert {row.attempts for row in jobs.rows()} == {1}
    assert set(jobs.marks().values()) == {1} and len(jobs.marks()) == 5 * ROWS
    assert "Traceback" not in race.all_said()


@pytest.mark.req("S2", "S3")
def test_loops_that_are_killed_complete_every_row_once(url: str, engine: Engine, tmp_path: Path):
    jobs = Jobs(engine, max_attempts=100)
    jobs.add(3 * ROWS)
    race = Race(url, tmp_path)
    try:
        for kill in range(3):
            racer = race.start("--batch", "5")
            race.start("--batch", "5")
            wanted = (kill + 1) * ROWS // 2
            wait_for(lambda wanted=wanted: jobs.statuses().get("completed", 0) >= wanted)
            racer.kill()
        wait_for(lambda: jobs.statuses() == {"completed": 3 * ROWS})
        assert all(racer.stop() == 0 for racer in race.racers if racer.is_alive), race.all_said()
    finally:
        race.end()


@pytest.mark.parametrize("sessions", [1])
@pytest.mark.parametrize("style", ["a job", "a session"])
def test_a_loop_lets_its_driver_prepare_nothing(engine: Engine, plain: Engine, style: str):
    jobs = Jobs(engine)
    jobs.add(ROWS)
    names: list[Any] = []

    def look(connection: Any) -> None:
        names.extend(connection.execute(PREPARED).scalars())

    def by_job(job: Job) -> None:
        job.effect(look)

    def by_session(key: int, session: Any) -> None:
        look(session)

    handler = by_job if style == "a job" else with_session(by_session)
    Loop(plain, jobs.mapping, handler, concurrency=2).run(drain=True)
    assert jobs.statuses() == {"completed": ROWS}
    assert names == []


@pytest.mark.parametrize("sessions", [1])
def test_an_async_loop_lets_its_driver_prepare_nothing(url: str, engine: Engine):
    pytest.importorskip("greenlet", reason="async engines need greenlet: pip install 'sqlalchemy[asyncio]'")
    import asyncio

    from sqlalchemy.ext.asyncio import create_async_engine

    jobs = Jobs(engine)
    jobs.add(ROWS)
    names: list[Any] = []

    async def handler(job: Job) -> None:
        async with job.session() as session:
            names.extend((await session.execute(PREPARED)).scalars())
            await session.commit()

    async def main() -> None:
        own = create_async_engine(url)
        await Loop(own, jobs.mapping, handler).run_async(drain=True, signals=False)
        await own.dispose()

    asyncio.run(main())
    assert jobs.statuses() == {"completed": ROWS}
    assert names == []


def test_on_connections_of_its_own_the_driver_prepares_what_is_said_often(postgres: str):
    """To plan a statement anew each time costs something, which nobody pays without a pooler."""
    with bare_schema(postgres) as direct:
        engine = engine_on(direct, pool_size=1, max_overflow=3)
        jobs = Jobs(engine)
        jobs.add(ROWS)
        Loop(engine, jobs.mapping, lambda job: None).run(drain=True)
        with engine.connect() as one, engine.connect() as two:
            assert one.execute(PREPARED).all() or two.execute(PREPARED).all()
        engine.dispose()


@pytest.mark.parametrize("said", ["EXECUTE missing", "PREPARE twice AS SELECT 1; PREPARE twice AS SELECT 1"])
def test_a_step_that_a_changed_session_broke_off_is_done_again_and_spends_no_attempt(
    engine: Engine, plain: Engine, said: str
):
    """Drivers that cannot be told to prepare nothing go on running into it."""
    jobs = Jobs(engine, max_attempts=1)
    jobs.add(1)
    effects = []

    def effect(connection: sa.Connection) -> None:
        effects.append(said)
        if len(effects) < 6:
            connection.exec_driver_sql(said)

    Loop(plain, jobs.mapping, lambda job: job.effect(effect)).run(drain=True)
    assert len(effects) == 6
    [row] = jobs.rows()
    assert (row.status, row.attempts) == ("completed", 1)
