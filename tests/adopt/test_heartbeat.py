"""Heartbeats: long work says that it lives, and nothing else."""

from __future__ import annotations

import threading
from datetime import UTC, datetime, timedelta

import pytest
import sqlalchemy as sa
from sqlalchemy import Engine

from holdfast.adopt import claim, complete, heartbeat, requeue_stale
from holdfast.adopt.loop.heartbeats import Heartbeats
from holdfast.adopt.table.held_row import Held
from holdfast.errors import UsageError
from tests.adopt.tables import Jobs
from tests.support.processes import STUCK_SECONDS, wait_for

NOON = datetime(2024, 5, 1, 12, 0, tzinfo=UTC)


@pytest.mark.req("F6")
def test_a_beat_writes_the_heartbeat_and_no_other_column(jobs: Jobs):
    jobs.add(3)
    rows = claim(jobs.engine, jobs.mapping, 2, now=NOON)
    before = [row._mapping for row in jobs.rows()]
    beaten = heartbeat(jobs.engine, rows, now=NOON + timedelta(minutes=9))
    assert [row.beat_at for row in beaten.won] == [NOON + timedelta(minutes=9)] * 2
    after = [row._mapping for row in jobs.rows()]
    changed = [{name for name in old if old[name] != new[name]} for old, new in zip(before, after, strict=True)]
    assert changed == [{"heartbeat"}, {"heartbeat"}, set()]


@pytest.mark.req("F6")
@pytest.mark.fault(8)
def test_a_beat_tells_which_rows_are_lost_and_leaves_their_new_holder_alone(jobs: Jobs):
    jobs.add(3)
    rows = claim(jobs.engine, jobs.mapping, 3, now=NOON)
    requeue_stale(jobs.engine, jobs.mapping, "30m", where=jobs.table.c.id == 2)
    claim(jobs.engine, jobs.mapping, now=NOON + timedelta(minutes=31))
    beaten = heartbeat(jobs.engine, rows)
    assert ([row.key for row in beaten.won], [row.key for row in beaten.lost]) == ([1, 3], [2])
    assert jobs.row(2).heartbeat.replace(tzinfo=UTC) == NOON + timedelta(minutes=31)


def test_a_table_without_a_heartbeat_column_cannot_beat(engine: Engine):
    jobs = Jobs(engine, ("holder",))
    jobs.add(1)
    with pytest.raises(UsageError, match="heartbeat="):
        heartbeat(engine, claim(engine, jobs.mapping))


@pytest.mark.req("F6")
@pytest.mark.parametrize("database", ["postgres"])  # on SQLite a handler that holds a write lock holds everybody up
def test_a_row_that_its_handler_has_locked_does_not_hold_up_the_beats_of_the_others(jobs: Jobs):
    """And nobody calls it stale meanwhile: the same lock keeps them from it."""
    jobs.add(2)
    rows = claim(jobs.engine, jobs.mapping, 2, now=NOON)
    with jobs.engine.begin() as handler:
        handler.execute(sa.update(jobs.table).where(jobs.table.c.id == 1).values(title="by the handler"))
        beaten = heartbeat(jobs.engine, rows)
        assert [row.key for row in beaten.won] == [1, 2]
        assert requeue_stale(jobs.engine, jobs.mapping, "30m").queued == ()
    assert jobs.row(1).heartbeat.replace(tzinfo=UTC) == NOON
    assert jobs.row(2).heartbeat > jobs.row(1).heartbeat
    complete(jobs.engine, rows)


@pytest.mark.req("F6")
@pytest.mark.parametrize("columns", [("holder", "heartbeat"), ("heartbeat",)])
def test_a_beater_beats_from_its_own_thread_and_tells_of_lost_rows(engine: Engine, columns: tuple[str, ...]):
    jobs = Jobs(engine, columns)
    jobs.add(2)
    rows = claim(engine, jobs.mapping, 2, now=NOON)
    lost: list[Held] = []
    beater = Heartbeats(engine, 0.02, lost.append)
    try:
        for row in rows:
            beater.add(row)
        wait_for(lambda: all(row.heartbeat.replace(tzinfo=UTC) > NOON for row in jobs.rows()))
        jobs.set(jobs.table.c.id == 1, status="queued")
        wait_for(lambda: lost == [rows[0]])
        current = beater.take(rows[1])
        assert complete(engine, current).won == (current,)
    finally:
        beater.stop()
    assert not any(thread.name == "holdfast-beat" for thread in threading.enumerate())


@pytest.mark.req("F2", "F6")
@pytest.mark.fault(8)
@pytest.mark.parametrize("database", ["postgres"])  # SQLite has one lock, which every write takes until its commit
def test_a_beater_that_is_frozen_before_its_commit_does_not_keep_its_rows_from_others(engine: Engine, url: str):
    jobs = Jobs(engine)
    jobs.add(1)
    [row] = claim(engine, jobs.mapping, now=NOON)
    frozen, thawed = threading.Event(), threading.Event()

    @sa.event.listens_for(engine, "commit")
    def freeze(connection: object) -> None:
        if threading.current_thread().name == "holdfast-beat":
            frozen.set()
            thawed.wait(STUCK_SECONDS)

    beater, others = Heartbeats(engine, 0.02, print), sa.create_engine(url)
    try:
        beater.add(row)
        assert frozen.wait(STUCK_SECONDS)
        later = datetime.now(UTC) + timedelta(hours=1)
        assert requeue_stale(others, jobs.mapping, "30m", now=later).queued == (1,)
    finally:
        thawed.set()
        beater.stop()
        others.dispose()


def test_a_beater_that_cannot_reach_the_database_goes_on_trying(engine: Engine, caplog: pytest.LogCaptureFixture):
    jobs = Jobs(engine)
    jobs.add(1)
    [row] = claim(engine, jobs.mapping, now=NOON)
    broken = threading.Event()

    @sa.event.listens_for(engine, "before_cursor_execute")
    def fail(connection: object, cursor: object, statement: str, *_: object) -> None:
        if broken.is_set() and "heartbeat" in statement and threading.current_thread().name == "holdfast-beat":
            raise OSError("the network is gone")

    broken.set()
    beater = Heartbeats(engine, 0.02, print)
    try:
        beater.add(row)
        wait_for(lambda: "the network is gone" in caplog.text)
        broken.clear()
        wait_for(lambda: jobs.row(1).heartbeat.replace(tzinfo=UTC) > NOON)
    finally:
        beater.stop()
    assert caplog.text.count("could not be sent") == 1
