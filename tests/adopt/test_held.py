"""`held`: several rows of several tables leave processing together, whichever way the work ends."""

from __future__ import annotations

import threading
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy import Engine
from sqlalchemy.orm import Session, sessionmaker

from holdfast import Backoff, LeaseLost, Permanent, RetryLater
from holdfast.adopt import Held, claim, complete, held, release, requeue_stale
from holdfast.errors import UsageError
from tests.adopt.tables import Jobs
from tests.support.processes import wait_for
from tests.support.together import at_once

NOON = datetime(2024, 5, 1, 12, 0, tzinfo=UTC)


class Phase:
    """A backlog item, its task and its checkpoint, each in a table of its own and with other columns."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.backlog = Jobs(engine, name="backlog")
        self.tasks = Jobs(
            engine,
            ("error", "version", "started"),
            name="tasks",
            queued="todo",
            processing="doing",
            completed="done",
            failed="broken",
        )
        self.checkpoints = Jobs(engine, ("holder", "heartbeat", "error", "next_attempt"), name="checkpoints")
        self.tables = (self.backlog, self.tasks, self.checkpoints)

    def take(self, now: datetime | None = None) -> list[Held]:
        for one in self.tables:
            one.add(1)
        return [row for one in self.tables for row in claim(self.engine, one.mapping, now=now)]

    def statuses(self) -> list[str]:
        return [one.rows("status")[-1].status for one in self.tables]

    def errors(self) -> list[str | None]:
        return [one.rows("error")[-1].error for one in self.tables]


@pytest.fixture
def phase(engine: Engine) -> Phase:
    return Phase(engine)


@pytest.mark.req("F3")
def test_work_that_succeeds_completes_all_its_rows_and_what_it_wrote_with_them(phase: Phase):
    rows = phase.take()
    with held(phase.engine, rows) as unit:
        assert phase.statuses() == ["processing", "doing", "processing"]
        unit.effect(phase.backlog.save_mark, "scene", by="weaver")
        unit.set(rows[0], title="woven")
        assert phase.backlog.marks() == {}
    assert phase.statuses() == ["completed", "done", "completed"]
    assert phase.backlog.marks() == {"scene": 1}
    assert phase.backlog.row(1).title == "woven"


@pytest.mark.req("F3")
def test_work_that_raises_fails_all_its_rows_with_the_error_which_goes_on(phase: Phase):
    def work() -> None:
        with held(phase.engine, phase.take()) as unit:
            unit.effect(phase.backlog.save_mark, "scene")
            raise ValueError("no ending")

    with pytest.raises(ValueError, match="no ending"):
        work()
    assert phase.statuses() == ["failed", "broken", "failed"]
    assert phase.errors() == ["ValueError: no ending"] * 3
    assert phase.backlog.marks() == {}


@pytest.mark.req("F3")
@pytest.mark.parametrize("retry", ["5m", Backoff(first_seconds=300, most_seconds=300)])
def test_work_that_raises_may_be_queued_again_with_a_time(phase: Phase, retry: Any):
    with pytest.raises(OSError, match="busy"), held(phase.engine, phase.take(), retry=retry):
        raise OSError("busy")
    assert phase.statuses() == ["queued", "todo", "queued"]
    assert phase.errors() == ["OSError: busy"] * 3
    waits = [phase.backlog.row(1).next_attempt, phase.checkpoints.row(1).next_attempt]
    assert all(timedelta(0) <= at.replace(tzinfo=UTC) - datetime.now(UTC) + timedelta(seconds=5) for at in waits)
    assert [row.attempts for row in phase.backlog.rows()] == [1]


@pytest.mark.req("F3")
def test_if_one_row_is_out_of_attempts_they_all_fail(engine: Engine):
    one, other = Jobs(engine, max_attempts=1), Jobs(engine, ("error",), name="other")
    one.add(1)
    other.add(1)
    rows = [*claim(engine, one.mapping), *claim(engine, other.mapping)]
    with pytest.raises(OSError), held(engine, rows, retry="1s"):  # noqa: PT011
        raise OSError
    assert [one.row(1).status, other.row(1).status] == ["failed", "failed"]


@pytest.mark.req("F3")
@pytest.mark.parametrize("error", [KeyboardInterrupt, GeneratorExit, lambda: RetryLater("1h")])
def test_work_that_is_broken_off_is_handed_back_and_no_attempt_counts(phase: Phase, error: Callable[[], BaseException]):
    rows = phase.take()
    with pytest.raises(BaseException), held(phase.engine, rows):  # noqa: B017, PT011
        raise error()
    assert phase.statuses() == ["queued", "todo", "queued"]
    assert phase.backlog.row(1).attempts == 0
    assert (phase.backlog.row(1).next_attempt is None) == (error in (KeyboardInterrupt, GeneratorExit))


@pytest.mark.req("F3")
def test_a_row_that_the_work_completes_itself_is_an_error_and_not_the_silent_end_of_the_others(phase: Phase):
    rows = phase.take()
    with pytest.raises(UsageError, match="completed within the block"), held(phase.engine, rows) as unit:  # noqa: PT012
        unit.effect(phase.backlog.save_mark, "scene")
        complete(phase.engine, rows[0])
    assert phase.statuses() == ["completed", "broken", "failed"]
    assert phase.backlog.marks() == {}


def test_what_can_never_work_is_not_tried_again(phase: Phase):
    with pytest.raises(Permanent), held(phase.engine, phase.take(), retry="1s"):
        raise Permanent("no such book")
    assert phase.statuses() == ["failed", "broken", "failed"]


@pytest.mark.req("F3")
@pytest.mark.fault(6, 60)
def test_if_one_row_was_taken_over_nothing_is_completed_and_the_others_are_free(phase: Phase):
    rows = phase.take()
    phase.tasks.set(version=99)
    with pytest.raises(LeaseLost, match="tasks"), held(phase.engine, rows) as unit:
        unit.effect(phase.backlog.save_mark, "scene")
    assert phase.statuses() == ["queued", "doing", "queued"]
    assert phase.tasks.row(1).version == 99
    assert phase.backlog.marks() == {}
    assert phase.backlog.row(1).attempts == 1


@pytest.mark.req("F3")
@pytest.mark.fault(7)
def test_a_failure_that_comes_after_the_rows_were_taken_over_changes_nothing(phase: Phase):
    rows = phase.take()
    before: list[Any] = []

    def work() -> None:
        with held(phase.engine, rows):
            release(phase.engine, rows)
            assert len([row for one in phase.tables for row in claim(phase.engine, one.mapping)]) == 3
            before.extend(one.rows() for one in phase.tables)
            raise ValueError("late")

    with pytest.raises(ValueError, match="late"):
        work()
    assert [one.rows() for one in phase.tables] == before


@pytest.mark.req("F3")
def test_an_effect_that_raises_fails_the_rows_and_leaves_nothing_behind(phase: Phase):
    def effect(connection: Any) -> None:
        phase.backlog.save_mark(connection, "half")
        raise RuntimeError("in the effect")

    with pytest.raises(RuntimeError, match="in the effect"), held(phase.engine, phase.take()) as unit:
        unit.effect(effect)
    assert phase.statuses() == ["failed", "broken", "failed"]
    assert phase.backlog.marks() == {}


@pytest.mark.req("F6")
def test_the_heartbeat_goes_on_while_the_work_blocks(phase: Phase):
    rows = phase.take(now=NOON)
    with held(phase.engine, rows, beat=0.02):
        for table in (phase.backlog, phase.checkpoints):
            wait_for(lambda table=table: table.row(1).heartbeat.replace(tzinfo=UTC) > NOON)
        assert requeue_stale(phase.engine, phase.backlog.mapping, "30m").queued == ()
    assert not any(thread.name == "holdfast-beat" for thread in threading.enumerate())


@pytest.mark.req("F6")
@pytest.mark.fault(6)
def test_work_can_ask_whether_its_rows_are_still_its_own(phase: Phase):
    rows = phase.take()

    def work() -> None:
        with held(phase.engine, rows, beat=0.02) as unit:
            unit.check()
            phase.backlog.set(holder="somebody else")
            wait_for(lambda: unit.lost)
            assert unit.lost == (rows[0],)
            unit.check()

    with pytest.raises(LeaseLost):
        work()


@pytest.mark.req("F3")
def test_rows_of_a_killed_process_come_back_through_recovery(phase: Phase):
    """What a process that is killed leaves behind is what a claim long ago leaves behind."""
    phase.take(now=NOON)
    for one in phase.tables:
        if one is not phase.checkpoints:
            assert requeue_stale(phase.engine, one.mapping, "30m").queued == (1,)
    assert requeue_stale(phase.engine, phase.checkpoints.mapping, "30m").queued == (1,)
    assert phase.statuses() == ["queued", "todo", "queued"]


@pytest.mark.fault(31)
def test_effects_that_lock_rows_in_opposite_order_all_take_place(phase: Phase):
    """A deadlock costs nobody an attempt: the transaction that lost is run again."""
    jobs = Jobs(phase.engine, (), name="shared")
    jobs.add(2)
    meet = threading.Barrier(2)
    calls: list[int] = []

    def work(first: int, second: int) -> None:
        def effect(connection: Any) -> None:
            calls.append(first)
            for place, key in enumerate((first, second)):
                title = sa.func.coalesce(jobs.table.c.title, "") + f"+{first}"
                connection.execute(sa.update(jobs.table).where(jobs.table.c.id == key).values(title=title))
                if place == 0 and len(calls) <= 2 and phase.engine.dialect.name == "postgresql":
                    meet.wait(10)

        phase.backlog.add(1)
        with held(phase.engine, claim(phase.engine, phase.backlog.mapping)) as unit:
            unit.effect(effect)

    at_once(lambda: work(1, 2), lambda: work(2, 1))
    assert phase.backlog.statuses() == {"completed": 2}
    for row in jobs.rows():
        assert row.title.count("+1") == row.title.count("+2") == 1
    assert len(calls) == (3 if phase.engine.dialect.name == "postgresql" else 2)


def test_sessions_of_a_sessionmaker_are_what_effects_get(phase: Phase):
    seen: list[Any] = []
    with held(sessionmaker(phase.engine), phase.take()) as unit:
        unit.effect(seen.append)
    assert isinstance(seen[0], Session)
    assert phase.statuses() == ["completed", "done", "completed"]


def test_what_cannot_be_held_is_refused(phase: Phase):
    rows = phase.take()
    with phase.engine.connect() as connection:
        for wrong in (connection, Session(connection)):
            with pytest.raises(UsageError, match="give an Engine or a sessionmaker"):
                held(wrong, rows)
    with pytest.raises(UsageError, match="no rows"):
        held(phase.engine, [])
    with pytest.raises(UsageError, match="not a held row"):
        held(phase.engine, [1])  # type: ignore[list-item]
    with pytest.raises(UsageError, match="longer than zero"):
        held(phase.engine, rows, beat=0)


def test_trouble_of_the_database_at_the_end_is_sat_out(phase: Phase):
    left = [2]

    @sa.event.listens_for(phase.engine, "before_cursor_execute")
    def fail(connection: Any, cursor: object, statement: str, *_: object) -> None:
        if left[0] and statement.startswith("UPDATE backlog") and "completed" in str(_[0]):
            left[0] -= 1
            raise sa.exc.OperationalError(statement, None, Exception("connection lost"))

    with held(phase.engine, phase.take()):
        pass
    assert left == [0]
    assert phase.statuses() == ["completed", "done", "completed"]
