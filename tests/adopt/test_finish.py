"""Finishing: only the claim that stands may complete, fail or release a row; a late worker changes nothing."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy import Engine, Integer, String
from sqlalchemy.types import TypeDecorator

from holdfast.adopt import Finished, Held, claim, complete, fail, heartbeat, release, requeue_stale, where_is
from holdfast.errors import LeaseLost, UsageError
from tests.adopt.places import pretend_support
from tests.adopt.tables import EVERY, Jobs

NOON = datetime(2024, 5, 1, 12, 0, tzinfo=UTC)

#: Every set of columns that fences, the weakest last.
FENCES = [EVERY, ("holder",), ("version",), ("started", "attempts"), ("attempts",), ("started",)]


def taken_over(jobs: Jobs) -> tuple[Held, Held]:
    """A row that a slow worker held, that went stale, and that another one holds now."""
    jobs.add(1)
    [slow] = claim(jobs.engine, jobs.mapping, now=NOON)
    jobs.set(status="queued", **({"version": 2} if "version" in jobs.table.c else {}))
    [fast] = claim(jobs.engine, jobs.mapping, now=NOON + timedelta(minutes=40))
    return slow, fast


@pytest.mark.req("S5", "V12")
@pytest.mark.fault(82)
def test_an_error_that_is_a_text_is_written_into_the_row_without_its_secrets(jobs: Jobs):
    jobs.add(1)
    [row] = claim(jobs.engine, jobs.mapping)
    fail(jobs.engine, row, "401: password=hunter22")
    assert jobs.row(1).error == "401: password=***"


@pytest.mark.req("S1")
def test_a_completed_row_has_no_error_and_keeps_who_did_it(jobs: Jobs):
    jobs.add(0, {"error": "of the last attempt"})
    [row] = claim(jobs.engine, jobs.mapping)
    assert complete(jobs.engine, row, now=NOON) == Finished((row,), ())
    found = jobs.row(1)
    assert (found.status, found.error, found.holder, found.version, found.attempts) == (
        "completed",
        None,
        row.token,
        2,
        1,
    )
    assert found.updated.replace(tzinfo=UTC) == NOON


@pytest.mark.req("S5")
def test_the_text_of_an_error_lands_in_the_row(jobs: Jobs):
    jobs.add(2)
    [first, second] = claim(jobs.engine, jobs.mapping, 2)
    fail(jobs.engine, first, ValueError("the page has no title"))
    fail(jobs.engine, second, "plain words")
    assert [(row.status, row.error) for row in jobs.rows()] == [
        ("failed", "ValueError: the page has no title"),
        ("failed", "plain words"),
    ]


@pytest.mark.req("F3")
def test_a_failed_attempt_may_be_tried_again_at_a_time(jobs: Jobs):
    jobs.add(1)
    [row] = claim(jobs.engine, jobs.mapping)
    fail(jobs.engine, row, OSError("busy"), retry_after="5m", now=NOON)
    found = jobs.row(1)
    assert (found.status, found.holder, found.error, found.attempts) == ("queued", None, "OSError: busy", 1)
    assert found.next_attempt.replace(tzinfo=UTC) == NOON + timedelta(minutes=5)


def test_a_release_hands_the_row_back_and_does_not_count_the_attempt(jobs: Jobs):
    jobs.add(2)
    rows = claim(jobs.engine, jobs.mapping, 2)
    release(jobs.engine, rows[0])
    release(jobs.engine, rows[1], after="1m", refund=False, now=NOON)
    assert [(row.status, row.attempts, row.holder) for row in jobs.rows()] == [("queued", 0, None), ("queued", 1, None)]
    assert jobs.row(2).next_attempt.replace(tzinfo=UTC) == NOON + timedelta(minutes=1)


@pytest.mark.req("F2", "F5")
@pytest.mark.fault(6, 7, 8)
@pytest.mark.parametrize(
    "columns", FENCES, ids=lambda columns: "+".join(columns) if columns != EVERY else "every column"
)
def test_whatever_a_late_worker_says_changes_nothing(engine: Engine, columns: tuple[str, ...]):
    jobs = Jobs(engine, columns)
    slow, fast = taken_over(jobs)
    before = jobs.row(1)
    lates: list[Any] = [
        lambda: complete(engine, slow),
        lambda: complete(engine, slow, values={"title": "old"}),
        lambda: fail(engine, slow, "late"),
        lambda: fail(engine, slow, "late", retry_after=0),
        lambda: release(engine, slow),
    ]
    for late in lates:
        with pytest.raises(LeaseLost, match="row 1"):
            late()
    assert complete(engine, slow, report=True) == Finished((), (slow,))
    if "heartbeat" in columns:
        assert heartbeat(engine, slow).lost == (slow,)
    assert jobs.row(1) == before
    assert complete(engine, fast).won == (fast,)


@pytest.mark.req("F5")
def test_without_a_column_that_tells_claims_apart_a_late_worker_is_not_fenced(engine: Engine):
    """What the guide says is not guaranteed, so that nobody promises it by mistake."""
    jobs = Jobs(engine, ())
    slow, fast = taken_over(jobs)
    assert complete(engine, slow).won == (slow,)
    with pytest.raises(LeaseLost):
        complete(engine, fast)


def test_with_only_a_heartbeat_column_the_last_beat_tells_whose_row_it_is(engine: Engine):
    jobs = Jobs(engine, ("heartbeat",))
    slow, fast = taken_over(jobs)
    [fast] = heartbeat(engine, fast).won
    with pytest.raises(LeaseLost):
        complete(engine, slow)
    assert complete(engine, fast).won == (fast,)


@pytest.mark.req("F7")
@pytest.mark.fault(60)
@pytest.mark.parametrize("harm", ["deleted", "re-keyed", "finished by hand"])
def test_a_row_that_others_removed_or_changed_is_reported_as_lost(jobs: Jobs, harm: str):
    jobs.add(2)
    rows = claim(jobs.engine, jobs.mapping, 2)
    with jobs.engine.begin() as connection:
        if harm == "deleted":
            connection.execute(sa.delete(jobs.table).where(jobs.table.c.id == 1))
        elif harm == "re-keyed":
            connection.execute(sa.update(jobs.table).where(jobs.table.c.id == 1).values(id=77))
        else:
            connection.execute(sa.update(jobs.table).where(jobs.table.c.id == 1).values(status="failed", holder=None))
    finished = complete(jobs.engine, rows, report=True)
    assert ([row.key for row in finished.won], [row.key for row in finished.lost]) == ([2], [1])
    assert jobs.row(2).status == "completed"


@pytest.mark.fault(60)
def test_if_one_of_several_rows_is_lost_none_is_saved(jobs: Jobs):
    jobs.add(3)
    rows = claim(jobs.engine, jobs.mapping, 3)
    jobs.set(jobs.table.c.id == 2, holder="somebody else")
    with pytest.raises(LeaseLost, match="row 2"):
        complete(jobs.engine, rows)
    assert jobs.statuses() == {"processing": 3}


@pytest.mark.req("F7")
@pytest.mark.fault(60)
def test_what_a_person_wrote_into_the_row_meanwhile_stays(jobs: Jobs):
    """Also in columns for which the model has a default on every update."""
    jobs.add(1)
    [row] = claim(jobs.engine, jobs.mapping)
    jobs.set(title="edited", note="by hand")
    heartbeat(jobs.engine, row)
    complete(jobs.engine, row)
    found = jobs.row(1)
    assert (found.status, found.title, found.note) == ("completed", "edited", "by hand")


@pytest.mark.req("F5")
def test_an_edit_that_bumps_the_version_takes_the_row_from_a_worker_that_has_no_token(engine: Engine):
    """The conflict is told; the row comes back when it is stale, and is worked on as it is then."""
    jobs = Jobs(engine, ("version", "started"))
    jobs.add(1)
    [row] = claim(engine, jobs.mapping, now=NOON)
    jobs.set(title="edited", version=jobs.table.c.version + 1)
    with pytest.raises(LeaseLost):
        complete(engine, row)
    assert requeue_stale(engine, jobs.mapping, "30m").queued == (1,)
    [again] = claim(engine, jobs.mapping)
    assert again.row["title"] == "edited"
    assert complete(engine, again).won == (again,)


@pytest.mark.parametrize(
    "columns", FENCES, ids=lambda columns: "+".join(columns) if columns != EVERY else "every column"
)
def test_a_completion_that_is_sent_again_is_no_loss(engine: Engine, columns: tuple[str, ...]):
    """The reply to a COMMIT may be lost."""
    jobs = Jobs(engine, columns)
    jobs.add(2)
    rows = claim(engine, jobs.mapping, 2)
    complete(engine, rows[0])
    before = jobs.row(1)
    assert complete(engine, rows).won == tuple(rows)
    assert jobs.row(1) == before
    with pytest.raises(LeaseLost):
        fail(engine, rows[0], "changed my mind")


def test_columns_of_the_users_own_are_written_with_the_completion(jobs: Jobs):
    jobs.add(1)
    [row] = claim(jobs.engine, jobs.mapping)
    complete(jobs.engine, row, values={"title": "done", "note": "n"})
    assert (jobs.row(1).title, jobs.row(1).note) == ("done", "n")


@pytest.mark.parametrize("name", ["status", "holder", "id", "nowhere"])
def test_mapped_columns_and_the_key_are_not_to_be_written_so(jobs: Jobs, name: str):
    jobs.add(1)
    [row] = claim(jobs.engine, jobs.mapping)
    with pytest.raises(Exception, match=name):
        complete(jobs.engine, row, values={name: "x"})
    assert jobs.row(1).status == "processing"


def test_an_error_is_cut_to_the_length_of_its_column(engine: Engine):
    jobs = Jobs(engine, key=[sa.Column("id", Integer, primary_key=True)])
    short = sa.Table(
        "short",
        sa.MetaData(),
        sa.Column("id", Integer, primary_key=True),
        sa.Column("status", String(20)),
        sa.Column("error", String(12), nullable=False, default=""),
    )
    short.create(engine)
    mapping = type(jobs.mapping)(short, error="error")
    with engine.begin() as connection:
        connection.execute(short.insert().values(status="queued"))
    [row] = claim(engine, mapping)
    fail(engine, row, ValueError("far too long for this"), retry_after=0)
    with engine.connect() as connection:
        assert connection.execute(sa.select(short.c.error)).scalar() == "ValueError: "
    [row] = claim(engine, mapping)
    complete(engine, row)
    with engine.connect() as connection:
        assert connection.execute(sa.select(short.c.error)).scalar() == ""


def test_of_a_database_error_only_its_message_is_kept(jobs: Jobs):
    """The statement and its values may hold what nobody should read in a status page."""
    jobs.add(1)
    [row] = claim(jobs.engine, jobs.mapping)
    with pytest.raises(sa.exc.DBAPIError) as raised, jobs.engine.connect() as connection:
        connection.execute(sa.text("SELECT secret FROM nowhere WHERE x = :x"), {"x": "password"})
    fail(jobs.engine, row, raised.value)
    assert "nowhere" in jobs.row(1).error
    assert "password" not in jobs.row(1).error and "[SQL" not in jobs.row(1).error


def test_what_is_not_a_held_row_is_refused(jobs: Jobs):
    with pytest.raises(UsageError, match="what claim returned"):
        complete(jobs.engine, [1])  # type: ignore[list-item]


@pytest.mark.parametrize("skip_locked", [True, False])
def test_databases_without_returning_finish_and_beat_the_same_way(
    jobs: Jobs, monkeypatch: pytest.MonkeyPatch, skip_locked: bool
):
    pretend_support(monkeypatch, skip_locked=skip_locked)
    jobs.add(4)
    rows = claim(jobs.engine, jobs.mapping, 4)
    jobs.set(jobs.table.c.id == 3, holder="somebody else")
    beaten = heartbeat(jobs.engine, rows)
    assert ([row.key for row in beaten.won], [row.key for row in beaten.lost]) == ([1, 2, 4], [3])
    finished = complete(jobs.engine, rows, report=True)
    assert ([row.key for row in finished.won], [row.key for row in finished.lost]) == ([1, 2, 4], [3])


def test_where_a_row_is_is_told_while_it_is_under_the_same_claim(jobs: Jobs):
    jobs.add(1)
    [row] = claim(jobs.engine, jobs.mapping)
    assert where_is(jobs.engine, row) == "processing"
    jobs.set(status="failed")
    assert where_is(jobs.engine, row) == "failed"
    jobs.set(holder="somebody else")
    assert where_is(jobs.engine, row) is None


class Shouted(TypeDecorator[str]):
    """A type of the user's own around a plain text."""

    impl = String
    cache_ok = True

    def process_bind_param(self, value: Any, dialect: Any) -> Any:
        return None if value is None else value.upper()

    def process_result_value(self, value: Any, dialect: Any) -> Any:
        return None if value is None else value.lower()


def test_a_status_of_a_type_of_the_users_own_is_stored_as_that_type_does(engine: Engine):
    jobs = Jobs(engine, status_type=Shouted(20))
    jobs.add(2)
    [first, second] = claim(engine, jobs.mapping, 2)
    complete(engine, first)
    jobs.set(jobs.table.c.id == 2, heartbeat=NOON, started=NOON)
    assert requeue_stale(engine, jobs.mapping, "1m").queued == (2,)
    with engine.connect() as connection:
        assert list(connection.execute(sa.text("SELECT status FROM jobs ORDER BY id")).scalars()) == [
            "COMPLETED",
            "QUEUED",
        ]
    assert second.row["status"] == "processing"
