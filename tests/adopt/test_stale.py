"""Stale rows: silence brings them back, once, and never from under a worker that lives."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy import Column, DateTime, Engine, Integer, Text

from holdfast.adopt import TableMapping, claim, complete, fail_spent, heartbeat, release, requeue_stale, waiting
from holdfast.errors import LeaseLost, UsageError
from tests.adopt.places import pretend_support
from tests.adopt.tables import Jobs
from tests.support.together import at_once

NOON = datetime(2024, 5, 1, 12, 0, tzinfo=UTC)


@pytest.mark.req("F2", "S5", "D9")
@pytest.mark.parametrize("minutes", [29, 30, 31])
def test_twenty_nine_minutes_of_silence_are_alive_and_thirty_one_are_stale(jobs: Jobs, minutes: int):
    jobs.add(1)
    [row] = claim(jobs.engine, jobs.mapping, now=NOON - timedelta(hours=5))
    heartbeat(jobs.engine, row, now=NOON)
    found = requeue_stale(jobs.engine, jobs.mapping, "30m", now=NOON + timedelta(minutes=minutes))
    assert found.queued == ((1,) if minutes == 31 else ())
    assert jobs.row(1).status == ("queued" if minutes == 31 else "processing")


@pytest.mark.req("F2", "D9")
def test_a_row_without_a_heartbeat_is_as_old_as_its_start_and_then_as_its_last_update(jobs: Jobs):
    old, young = NOON - timedelta(hours=1), NOON - timedelta(minutes=1)
    jobs.add(
        0,
        {"status": "processing", "heartbeat": None, "started": old, "updated": young},
        {"status": "processing", "heartbeat": None, "started": young, "updated": old},
        {"status": "processing", "heartbeat": None, "started": None, "updated": old},
        {"status": "processing", "heartbeat": young, "started": old, "updated": old},
        {"status": "processing"},  # nobody can tell how old this is
    )
    assert requeue_stale(jobs.engine, jobs.mapping, "30m", now=NOON).queued == (1, 3)


@pytest.mark.req("F2")
def test_a_row_that_comes_back_has_no_holder_and_another_version_and_the_attempt_counts(jobs: Jobs):
    jobs.add(1)
    [row] = claim(jobs.engine, jobs.mapping, now=NOON)
    requeue_stale(jobs.engine, jobs.mapping, "30m")
    found = jobs.row(1)
    assert (found.status, found.holder, found.version, found.attempts) == ("queued", None, 2, 1)
    with pytest.raises(LeaseLost):
        complete(jobs.engine, row)


@pytest.mark.req("S5")
def test_a_row_without_attempts_left_fails_and_says_why(engine: Engine):
    jobs = Jobs(engine, max_attempts=2)
    jobs.add(0, {"attempts": 1}, {"attempts": 0, "error": "of the first attempt"})
    claim(engine, jobs.mapping, 2, now=NOON)
    found = requeue_stale(engine, jobs.mapping, "30m")
    assert (found.failed, found.queued, len(found)) == ((1,), (2,), 2)
    [spent, other] = jobs.rows()
    assert spent.status == "failed" and spent.error.startswith("attempt 2 sent no heartbeat for 30 m")
    assert (other.status, other.error) == ("queued", "of the first attempt")


def test_queued_rows_without_attempts_left_do_not_wait_for_ever(engine: Engine):
    jobs = Jobs(engine, max_attempts=3)
    jobs.add(0, {"attempts": 3}, {"attempts": 2})
    assert fail_spent(engine, jobs.mapping).failed == (1,)
    assert [(row.status, row.error) for row in jobs.rows()] == [
        ("failed", "all 3 attempts are used up"),
        ("queued", None),
    ]


@pytest.mark.req("F2")
@pytest.mark.fault(19)
def test_eight_resumers_at_once_bring_each_row_back_once(jobs: Jobs):
    jobs.add(120)
    claim(jobs.engine, jobs.mapping, 120, now=NOON)

    def resume() -> list[Any]:
        found: list[Any] = []
        while rows := requeue_stale(jobs.engine, jobs.mapping, "30m", most=11).queued:
            found += rows
        return found

    shares = at_once(*[resume] * 8)
    assert sorted(key for share in shares for key in share) == list(range(1, 121))
    assert {(row.status, row.version, row.attempts) for row in jobs.rows()} == {("queued", 2, 1)}


@pytest.mark.req("F2")
@pytest.mark.fault(20)
@pytest.mark.parametrize("ends", ["complete", "release", "beat"])
def test_a_row_that_ends_just_as_it_is_called_stale_goes_one_way_only(jobs: Jobs, ends: str):
    """The worker and the resumer are both told who won, and what they are told is what is in the row."""
    for number in range(1, 26):
        jobs.add(1)
        [row] = claim(jobs.engine, jobs.mapping, now=NOON)

        def finish(row: Any = row) -> bool:
            if ends == "beat":
                return bool(heartbeat(jobs.engine, row).won)
            done = complete if ends == "complete" else release
            return bool(done(jobs.engine, row, report=True).won)

        def resume() -> bool:
            return bool(requeue_stale(jobs.engine, jobs.mapping, "30m").queued)

        worker, resumer = at_once(finish, resume)
        if ends == "beat":
            # One that met the resumer's lock does not know yet; the next one does.
            worker = finish()
        found = jobs.row(number)
        expected = {"complete": "completed", "release": "queued", "beat": "processing"}[ends] if worker else "queued"
        assert worker != resumer
        assert (found.status, found.attempts) == (expected, 0 if worker and ends == "release" else 1)
        jobs.set(jobs.table.c.id == number, status="failed")


def test_a_step_takes_no_more_rows_than_it_was_told(jobs: Jobs):
    jobs.add(5)
    claim(jobs.engine, jobs.mapping, 5, now=NOON)
    assert len(requeue_stale(jobs.engine, jobs.mapping, "30m", most=2)) == 2
    only = requeue_stale(jobs.engine, jobs.mapping, "30m", where=jobs.table.c.title == "job 4")
    assert only.queued == (4,)


def test_databases_without_skip_locked_bring_back_rows_that_did_not_change_meanwhile(
    jobs: Jobs, monkeypatch: pytest.MonkeyPatch
):
    pretend_support(monkeypatch, skip_locked=False)
    jobs.add(3)
    claim(jobs.engine, jobs.mapping, 3, now=NOON)
    assert requeue_stale(jobs.engine, jobs.mapping, "30m").queued == (1, 2, 3)
    assert {(row.status, row.holder) for row in jobs.rows()} == {("queued", None)}


def test_without_any_time_nothing_can_be_called_stale(engine: Engine):
    jobs = Jobs(engine, ("holder",))
    with pytest.raises(UsageError, match="heartbeat, started or updated"):
        requeue_stale(engine, jobs.mapping, "30m")


@pytest.mark.parametrize("zone", ["Asia/Tokyo", "America/New_York"])
def test_a_time_without_zone_is_utc_whatever_the_zone_of_the_session(engine: Engine, zone: str):
    """A heartbeat with a zone and a start without one are compared as the same kind of time."""
    if engine.dialect.name == "postgresql":
        sa.event.listen(engine, "connect", lambda conn, _: conn.execute(f"SET TIME ZONE '{zone}'") and conn.commit())
    table = sa.Table(
        "mixed",
        sa.MetaData(),
        Column("id", Integer, primary_key=True),
        Column("status", Text),
        Column("beat", DateTime(timezone=True)),
        Column("began", DateTime(timezone=False)),
    )
    table.create(engine)
    mapping = TableMapping(table, heartbeat="beat", started="began")
    with engine.begin() as connection:
        connection.execute(table.insert().values(status="queued"))
    [row] = claim(engine, mapping)
    assert row.started_at is not None and abs(datetime.now(UTC) - row.started_at) < timedelta(seconds=30)
    with engine.begin() as connection:
        connection.execute(table.update().values(beat=None))
    assert requeue_stale(engine, mapping, "5m").queued == ()
    assert requeue_stale(engine, mapping, 0).queued == (1,)


@pytest.mark.req("S7")
def test_how_many_rows_wait_and_for_how_long_is_told(jobs: Jobs):
    assert waiting(jobs.engine, jobs.mapping) == (0, None)
    jobs.add(
        0,
        {"created": NOON - timedelta(seconds=90)},
        {"created": NOON - timedelta(seconds=500), "next_attempt": NOON - timedelta(seconds=30)},
        {"created": NOON - timedelta(hours=9), "next_attempt": NOON + timedelta(seconds=30)},
        {"created": NOON - timedelta(hours=9), "status": "processing"},
    )
    assert waiting(jobs.engine, jobs.mapping, now=NOON) == (2, 90.0)
