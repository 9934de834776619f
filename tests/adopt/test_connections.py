"""What a loop does with connections: it keeps none from anybody, and leaves no transaction open between rows."""

from __future__ import annotations

import secrets
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy import Engine, NullPool, StaticPool
from sqlalchemy.pool import SingletonThreadPool

from holdfast.adopt import Job, Loop
from holdfast.adopt.loop.batch_or_alone import BATCH
from holdfast.adopt.loop.calls import QUICK_SECONDS
from holdfast.adopt.loop.claim_next import claiming
from tests.adopt.places import engine_on
from tests.adopt.tables import Jobs
from tests.adopt.test_loop import Running, nothing
from tests.support.processes import wait_for


@contextmanager
def another(url: str, **settings: Any) -> Iterator[Engine]:
    """An engine beside the test's own."""
    engine = engine_on(url, **settings)
    yield engine
    engine.dispose()


class Named:
    """An engine whose sessions can be told from others, on PostgreSQL by a name; it has three at hand, used in turn."""

    def __init__(self, url: str, **settings: Any) -> None:
        self.is_sqlite = url.startswith("sqlite")
        self._name = f"loop-{secrets.token_hex(4)}"
        self._opened: list[Any] = []
        if not self.is_sqlite:
            settings["connect_args"] = {"application_name": self._name}
        self.engine = engine_on(url, **settings)
        sa.event.listen(self.engine, "connect", lambda connection, _: self._opened.append(connection))
        with self.engine.connect(), self.engine.connect(), self.engine.connect():
            pass

    def open_transactions(self, beside: sa.Connection) -> int:
        """More than none if a transaction is open, even one that has only read: SQLite's log cannot be emptied then."""
        if self.is_sqlite:
            return int(beside.exec_driver_sql("PRAGMA wal_checkpoint(TRUNCATE)").one()[0])
        asked = "SELECT count(*) FROM pg_stat_activity WHERE application_name = :name AND state LIKE 'idle in %'"
        return int(beside.execute(sa.text(asked), {"name": self._name}).scalar_one())

    def cut(self, beside: Engine) -> None:
        """End all its sessions."""
        if self.is_sqlite:
            for connection in self._opened:
                connection.close()
            return
        ending = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = :name"
        with beside.begin() as connection:
            connection.execute(sa.text(ending), {"name": self._name})


@pytest.fixture(params=["rollback", None])
def named(url: str, request: pytest.FixtureRequest) -> Iterator[Named]:
    """One whose pool rolls back what is returned to it, and one whose pool does nothing about it."""
    named = Named(url, pool_reset_on_return=request.param)
    yield named
    named.engine.dispose()


def in_use(engine: Engine) -> int:
    count: int = engine.pool.checkedout()  # type: ignore[attr-defined]
    return count


# Between rows ---------------------------------------------------------------------------------------------------------


@pytest.mark.req("S3")
def test_no_transaction_is_open_while_a_handler_runs(named: Named, jobs: Jobs):
    jobs.add(30)
    seen: list[int] = []
    with jobs.engine.connect().execution_options(isolation_level="AUTOCOMMIT") as beside:

        def handler(job: Job) -> None:
            if job.key % 10 == 7:  # the others are quick
                seen.append(named.open_transactions(beside))

        Loop(named.engine, jobs.mapping, handler, batch=10).run(drain=True)
    assert seen == [0, 0, 0]
    assert jobs.statuses() == {"completed": 30}


@pytest.mark.parametrize("concurrency", [1, 3])
def test_the_pool_has_its_connections_back_when_a_loop_is_idle_and_when_it_ends(url: str, jobs: Jobs, concurrency: int):
    with another(url) as engine:
        for _ in range(5):
            jobs.add(20)
            Loop(engine, jobs.mapping, nothing, concurrency=concurrency).run(drain=True)
            assert in_use(engine) == 0
        jobs.add(20)
        loop = Loop(engine, jobs.mapping, nothing, concurrency=concurrency, poll="30s")
        with Running(loop):
            wait_for(lambda: loop.counters.completed == 20 and in_use(engine) == 0)
        assert in_use(engine) == 0


def test_a_loop_that_is_stopped_between_rows_has_returned_its_connections_when_it_ends(url: str, jobs: Jobs):
    jobs.add(50)

    def slowly(*_: Any) -> None:
        if threading.current_thread().name == "holdfast-handler":
            time.sleep(0.2)  # whoever did not wait for it would see

    with another(url) as engine:
        sa.event.listen(engine, "checkin", slowly)

        def handler(job: Job) -> None:
            if job.key == 15:
                loop.stop()

        loop = Loop(engine, jobs.mapping, handler)
        loop.run(signals=False)
        assert in_use(engine) == 0
    assert jobs.statuses() == {"completed": 15, "queued": 35}


def test_on_sqlite_quick_rows_share_a_connection_and_slow_ones_keep_none(tmp_path: Path):
    """To take one out of the pool costs as much as a statement there."""
    with another(f"sqlite:///{tmp_path / 'own.db'}") as engine:
        jobs = Jobs(engine)
        jobs.add(200)
        taken: list[object] = []
        sa.event.listen(engine, "checkout", lambda *_: taken.append(object()))
        Loop(engine, jobs.mapping, nothing).run(drain=True)
        assert len(taken) < 100
        jobs.set(status="queued", attempts=0)
        kept: list[int] = []

        def slow(job: Job) -> None:
            time.sleep(2 * QUICK_SECONDS)
            kept.append(in_use(engine))

        Loop(engine, jobs.mapping, slow, where=jobs.table.c.id <= 10).run(drain=True)
        assert kept == [0] * 10


# Pools ----------------------------------------------------------------------------------------------------------------

POOLS: dict[str, dict[str, Any]] = {
    "one": {"pool_size": 1, "max_overflow": 0, "pool_timeout": 2},
    "two": {"pool_size": 2, "max_overflow": 0, "pool_timeout": 2},
    "as usual": {},
    "without limit": {"pool_size": 0},
    "asked first": {"pool_pre_ping": True},
    "none": {"poolclass": NullPool},
    "one for each thread": {"poolclass": SingletonThreadPool},
}


@pytest.mark.parametrize("name", POOLS)
@pytest.mark.parametrize("concurrency", [1, 2])
def test_handlers_get_connections_from_whatever_pool_there_is(url: str, jobs: Jobs, name: str, concurrency: int):
    """A loop that kept the pool's only connection from its own handler would wait for itself."""
    jobs.add(40)
    with another(url, **POOLS[name]) as engine:

        def handler(job: Job) -> None:
            if job.key > 15:  # quick at first
                with engine.connect() as connection:
                    connection.execute(sa.select(jobs.table.c.id).where(jobs.table.c.id == job.key)).one()

        loop = Loop(engine, jobs.mapping, handler, concurrency=concurrency)
        loop.run(drain=True)
    assert (loop.counters.completed, loop.counters.retried) == (40, 0)
    assert {row.attempts for row in jobs.rows()} == {1}


def test_a_loop_works_on_the_one_connection_of_a_static_pool(tmp_path: Path):
    """SQLite's alone: threads cannot share a session of PostgreSQL."""
    with another(f"sqlite:///{tmp_path / 'own.db'}", poolclass=StaticPool) as engine:
        jobs = Jobs(engine)
        jobs.add(30)
        Loop(engine, jobs.mapping, nothing).run(drain=True)
        assert jobs.statuses() == {"completed": 30}


def test_a_row_waits_for_a_pool_that_has_no_connection_left(url: str, jobs: Jobs, caplog: pytest.LogCaptureFixture):
    jobs.add(10)
    with another(url, pool_size=1, max_overflow=0, pool_timeout=0.05) as engine:
        taken: list[sa.Connection] = []

        def handler(job: Job) -> None:
            if job.key == 5:
                taken.append(engine.connect())

        loop = Loop(engine, jobs.mapping, handler)
        with Running(loop):
            wait_for(lambda: "waiting for the database" in caplog.text)
            assert jobs.statuses() == {"completed": 4, "processing": 6}
            taken[0].close()
            wait_for(lambda: loop.counters.completed == 10)
    assert {row.attempts for row in jobs.rows()} == {1}


# Trouble --------------------------------------------------------------------------------------------------------------


@pytest.mark.fault(19)
def test_connections_that_die_between_rows_are_replaced(named: Named, jobs: Jobs):
    jobs.add(30)

    def handler(job: Job) -> None:
        if job.key % 10 == 5:
            named.cut(jobs.engine)

    loop = Loop(named.engine, jobs.mapping, handler)
    loop.run(drain=True)
    assert jobs.statuses() == {"completed": 30}
    assert {row.attempts for row in jobs.rows()} == {1}
    assert (loop.counters.completed, loop.counters.lost, loop.counters.failed) == (30, 0, 0)


@pytest.mark.fault(19)
def test_a_claim_that_meets_connections_that_died_is_made_on_another(named: Named, jobs: Jobs):
    jobs.add(5)
    loop = Loop(named.engine, jobs.mapping, nothing)
    named.cut(jobs.engine)
    assert [one.key for one in claiming(loop, BATCH, 10)] == [1, 2, 3, 4, 5]
    assert {row.attempts for row in jobs.rows()} == {1}


@pytest.mark.parametrize("locks", ["a completion", "a claim"])
def test_a_file_that_somebody_has_locked_is_waited_for(tmp_path: Path, locks: str, caplog: pytest.LogCaptureFixture):
    """SQLite's alone: there one lock is for all rows."""
    url = f"sqlite:///{tmp_path / 'own.db'}"
    with another(url) as engine:
        jobs = Jobs(engine)
        jobs.add(20)
        impatient = sa.create_engine(url, connect_args={"timeout": 0, "check_same_thread": False})
        locking: Any = engine.raw_connection().driver_connection
        if locks == "a claim":
            locking.execute("BEGIN IMMEDIATE")

        def handler(job: Job) -> None:
            if locks == "a completion" and job.key == 5:
                locking.execute("BEGIN IMMEDIATE")

        loop = Loop(impatient, jobs.mapping, handler)
        with Running(loop):
            wait_for(lambda: "waiting for the database" in caplog.text)
            assert jobs.statuses().get("completed", 0) == (0 if locks == "a claim" else 4)
            locking.rollback()
            wait_for(lambda: loop.counters.completed == 20)
        impatient.dispose()
        assert (loop.counters.lost, loop.counters.retried, loop.counters.failed) == (0, 0, 0)
        assert {row.attempts for row in jobs.rows()} == {1}


def test_rows_that_are_refused_or_lost_leave_no_transaction_behind(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    """SQLite's alone, where one that stayed open would keep everybody else out."""
    url = f"sqlite:///{tmp_path / 'own.db'}"
    named = Named(url, pool_reset_on_return=None)
    sa.event.listen(named.engine, "checkout", lambda connection, *_: connection.execute("PRAGMA busy_timeout = 10"))
    jobs = Jobs(named.engine)
    jobs.add(10)
    with named.engine.begin() as connection:
        connection.exec_driver_sql(
            "CREATE TRIGGER choosy BEFORE UPDATE ON jobs WHEN new.status = 'completed' AND new.id = 4 "
            "BEGIN SELECT raise(ABORT, 'not this one'); END"
        )
    seen: list[int] = []
    with another(url) as beside:

        def handler(job: Job) -> None:
            with beside.begin() as connection:
                seen.append(named.open_transactions(connection))
            if job.key == 7:
                with beside.begin() as connection:
                    connection.execute(jobs.table.delete().where(jobs.table.c.id == 7))

        loop = Loop(named.engine, jobs.mapping, handler, retry=None)
        loop.run(drain=True)
    assert seen == [0] * 10
    assert jobs.statuses() == {"completed": 8, "failed": 1}
    assert "not this one" in jobs.row(4).error
    assert loop.counters.lost == 1
    assert "waiting for the database" not in caplog.text  # not for one of its own
    named.engine.dispose()
