"""Claiming: whoever makes a queued row a processing row has it, and nobody else."""

from __future__ import annotations

import threading
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy import Column, Engine, Integer
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

from holdfast.adopt import TableMapping, claim, fail
from holdfast.adopt.rows.claim import ClaimTerms, claim_unguarded, queued_keys
from holdfast.adopt.table.tokens import LoopIdentity, instance_of
from holdfast.errors import UsageError
from tests.adopt.places import pretend_support
from tests.adopt.tables import Jobs
from tests.support.together import at_once

NOON = datetime(2024, 5, 1, 12, 0, tzinfo=UTC)


@pytest.mark.req("S1")
def test_a_claim_marks_its_rows_and_hands_them_over_as_they_are_now(jobs: Jobs):
    jobs.add(3)
    [first, second] = claim(jobs.engine, jobs.mapping, 2, now=NOON, holder="morning shift")
    assert (first.key, second.key) == (1, 2)
    assert first.row["title"] == "job 1" and first.row["status"] == "processing"
    row = jobs.row(1)
    assert (row.status, row.attempts, row.version, row.holder) == ("processing", 1, 1, first.token)
    assert row.holder.startswith("morning shift-")
    for moment in (row.started, row.heartbeat, row.updated):
        assert moment.replace(tzinfo=UTC) == NOON
    assert (first.attempt, first.version, first.started_at, first.beat_at) == (1, 1, NOON, NOON)
    assert (row.error, row.next_attempt, row.created, row.note) == (None, None, None, None)
    assert jobs.row(3).status == "queued"


@pytest.mark.req("F1", "S2")
def test_claims_that_race_share_the_rows_and_no_row_goes_to_two(jobs: Jobs):
    jobs.add(200)

    def claim_all() -> list[Any]:
        found: list[Any] = []
        while rows := claim(jobs.engine, jobs.mapping, 7):
            found += [row.key for row in rows]
        return found

    shares = at_once(*[claim_all] * 4)
    assert sorted(key for share in shares for key in share) == list(range(1, 201))
    assert jobs.statuses() == {"processing": 200}
    assert {row[0] for row in jobs.rows("attempts")} == {1}


@pytest.mark.req("F1")
def test_two_schedulers_that_want_the_same_row_are_told_who_won(jobs: Jobs):
    """Only the one whose claim won may enqueue."""
    jobs.add(1)
    won = at_once(*[lambda: claim(jobs.engine, jobs.mapping, 1, where=jobs.table.c.id == 1)] * 4)
    assert sorted(len(rows) for rows in won) == [0, 0, 0, 1]


@pytest.mark.req("S2")
@pytest.mark.parametrize("database", ["postgres"])  # SQLite has one writer at a time, who is done in a moment
def test_the_second_instance_takes_the_next_rows_without_waiting_for_the_first(jobs: Jobs):
    jobs.add(25)
    with jobs.engine.begin() as first, jobs.engine.begin() as second:
        ours = claim(first, jobs.mapping, 10)
        second.execute(sa.text("SET LOCAL lock_timeout = '100ms'"))
        theirs = claim(second, jobs.mapping, 10)
    assert [row.key for row in ours] == list(range(1, 11))
    assert [row.key for row in theirs] == list(range(11, 21))


@pytest.mark.req("S4")
def test_order_and_filter_are_settings(jobs: Jobs):
    jobs.add(0, *({"title": title} for title in ("b", "c", "a", "d")))
    assert [row.key for row in claim(jobs.engine, jobs.mapping, 2, order_by="title")] == [3, 1]
    mine = claim(
        jobs.engine, jobs.mapping, 9, order_by="-title", where=[jobs.table.c.title != "zz", jobs.table.c.id > 1]
    )
    assert [row.key for row in mine] == [4, 2]


@pytest.mark.req("S5")
def test_a_row_is_claimed_when_it_is_due_and_not_before(jobs: Jobs):
    jobs.add(0, {"next_attempt": NOON + timedelta(seconds=5)}, {"next_attempt": None})
    assert [row.key for row in claim(jobs.engine, jobs.mapping, 9, now=NOON)] == [2]
    assert claim(jobs.engine, jobs.mapping, 9, now=NOON + timedelta(seconds=4.9)) == []
    assert [row.key for row in claim(jobs.engine, jobs.mapping, 9, now=NOON + timedelta(seconds=5))] == [1]


@pytest.mark.req("S5")
def test_attempts_are_counted_in_the_claim_and_bounded(engine: Engine):
    jobs = Jobs(engine, max_attempts=2)
    jobs.add(1)
    for attempt in (1, 2):
        [row] = claim(engine, jobs.mapping)
        assert row.attempt == attempt
        fail(engine, row, "no", retry_after=0)
    assert claim(engine, jobs.mapping) == []
    assert jobs.row(1).status == "failed"


@pytest.mark.req("S5")
def test_the_bound_may_be_a_column_of_the_row(engine: Engine):
    own = [Column("id", Integer, primary_key=True), Column("tries", Integer)]
    jobs = Jobs(engine, ("attempts",), key=own, max_attempts="tries")
    jobs.add(0, {"tries": 1}, {"tries": 3})
    for row in claim(engine, jobs.mapping, 2):
        fail(engine, row, "no", retry_after=0)
    assert [row.status for row in jobs.rows()] == ["failed", "queued"]


def test_numbers_that_nobody_has_set_count_as_zero(jobs: Jobs):
    jobs.add(0, {"attempts": None, "version": None})
    [row] = claim(jobs.engine, jobs.mapping)
    assert (row.attempt, row.version) == (1, 1)


@pytest.mark.parametrize("columns", [(), ("started",), ("version",), ("holder",), ("heartbeat", "attempts")])
def test_a_table_with_few_columns_can_be_claimed_from(engine: Engine, columns: tuple[str, ...]):
    jobs = Jobs(engine, columns)
    jobs.add(3)
    assert [row.key for row in claim(engine, jobs.mapping, 2)] == [1, 2]
    assert [row.key for row in claim(engine, jobs.mapping, 2)] == [3]


def test_only_the_columns_that_were_asked_for_are_brought_along(jobs: Jobs):
    jobs.add(1)
    [row] = claim(jobs.engine, jobs.mapping, columns=["title"])
    assert row.row == {"title": "job 1"}


def test_a_claim_in_the_callers_transaction_is_undone_with_it(jobs: Jobs):
    jobs.add(1)
    with jobs.engine.connect() as connection:
        [row] = claim(connection, jobs.mapping)
        connection.rollback()
    assert jobs.row(1).status == "queued"
    with Session(jobs.engine) as session:
        [row] = claim(session, jobs.mapping)
        session.commit()
    assert jobs.row(1).holder == row.token


@pytest.mark.parametrize("n", [0, -1, True, "2"])
def test_a_claim_of_nothing_is_refused(jobs: Jobs, n: Any):
    with pytest.raises(UsageError, match="number from 1"):
        claim(jobs.engine, jobs.mapping, n)


def test_every_claim_has_a_token_of_its_own_and_every_process_a_part_of_it(jobs: Jobs):
    jobs.add(3)
    tokens = [claim(jobs.engine, jobs.mapping)[0].token for _ in range(2)]
    other = claim(jobs.engine, jobs.mapping, holder=LoopIdentity("other"))[0].token
    assert len({*tokens, other}) == 3
    assert instance_of(tokens[0]) == instance_of(tokens[1]) != instance_of(other)


def test_rows_of_another_model_in_the_same_table_are_left_alone(engine: Engine):
    class Base(DeclarativeBase):
        pass

    class Task(Base):
        __tablename__ = "tasks"
        __mapper_args__ = {"polymorphic_on": "kind", "polymorphic_identity": "task"}  # noqa: RUF012
        id: Mapped[int] = mapped_column(primary_key=True)
        kind: Mapped[str]
        state: Mapped[str] = mapped_column("task_state", default="queued")

    class Scan(Task):
        __mapper_args__ = {"polymorphic_identity": "scan"}  # noqa: RUF012

    Base.metadata.create_all(engine)
    with Session(engine) as session:
        session.add_all([Task(), Scan(), Task()])
        session.commit()
    assert [row.key for row in claim(engine, TableMapping(Scan, status="state"), 9)] == [2]
    assert [row.key for row in claim(engine, TableMapping(Task, status="state"), 9)] == [1, 3]


@pytest.mark.req("F1")
def test_a_database_without_skip_locked_and_returning_is_claimed_from_row_by_row(
    jobs: Jobs, monkeypatch: pytest.MonkeyPatch
):
    """What other databases get: a look, then a change under the condition that nothing changed meanwhile."""
    pretend_support(monkeypatch, skip_locked=False)
    jobs.add(60)

    def claim_all() -> list[Any]:
        found: list[Any] = []
        while rows := claim(jobs.engine, jobs.mapping, 20, order_by="-id"):
            found += [row.key for row in rows]
        return found

    shares = at_once(*[claim_all] * 2)
    assert sorted(key for share in shares for key in share) == list(range(1, 61))


@pytest.mark.req("F8")
@pytest.mark.parametrize("guarded", [True, False])
def test_two_that_saw_the_same_rows_process_them_once_with_the_guard_and_twice_without(jobs: Jobs, guarded: bool):
    """The same race, with the switch on and off: both look before either takes."""
    jobs.add(10)
    barrier = threading.Barrier(2)

    def scheduler() -> tuple[list[Any], int]:
        with jobs.engine.connect() as connection:
            seen = queued_keys(connection, ClaimTerms(jobs.mapping), 10)
        barrier.wait(10)
        with jobs.engine.begin() as connection:
            if guarded:
                own = jobs.table.c.id.in_([key for (key,) in seen])
                return claim(connection, jobs.mapping, 10, where=own), 0
            return claim_unguarded(connection, ClaimTerms(jobs.mapping), seen, LoopIdentity())

    taken = at_once(scheduler, scheduler)
    keys = sorted(row.key for rows, _ in taken for row in rows)
    assert keys == sorted(list(range(1, 11)) * (1 if guarded else 2))
    assert sum(twice for _, twice in taken) == (0 if guarded else 10)
