"""The loop: rows are worked off, one bad row costs only itself, and a stop hands back what is not done."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import sqlite3
import subprocess
import threading
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy import Engine
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column, sessionmaker

from holdfast import Backoff, CredentialRefused, OutOfCredit, Permanent, RateLimited, RetryLater, Skip
from holdfast.adopt import Counters, Job, Left, Loop, TableMapping, claim, run_job_loop, with_session
from holdfast.errors import UsageError
from tests.adopt.tables import Jobs
from tests.support.processes import wait_for
from tests.support.slowness import slowness
from tests.support.together import at_once

NOON = datetime(2024, 5, 1, 12, 0, tzinfo=UTC)
QUICK = Backoff(first_seconds=0.001, most_seconds=0.001)


def nothing(job: Job) -> None:
    """A handler."""


class Running:
    """A loop in a thread, stopped when the test is done with it."""

    def __init__(self, loop: Loop) -> None:
        self.loop = loop
        self._thread = threading.Thread(target=self._run)
        self.error: BaseException | None = None

    def _run(self) -> None:
        try:
            self.loop.run(signals=False)
        except BaseException as error:
            self.error = error

    def __enter__(self) -> Loop:
        self._thread.start()
        return self.loop

    def __exit__(self, *_: object) -> None:
        self.loop.stop()
        self._thread.join(30)
        assert not self._thread.is_alive()


# What it does with rows -----------------------------------------------------------------------------------------------


@pytest.mark.req("S1", "S7")
@pytest.mark.parametrize("concurrency", [1, 4])
def test_rows_go_from_queued_to_completed_or_failed(engine: Engine, concurrency: int):
    jobs = Jobs(engine, ("error",))
    jobs.add(25)

    def handler(job: Job) -> None:
        if job.key % 10 == 3:
            raise ValueError(f"row {job.key}")
        job.set(title=f"{job.row['title']}, done")

    loop = Loop(engine, jobs.mapping, handler, concurrency=concurrency)
    counters = loop.run(drain=True)
    assert jobs.statuses() == {"completed": 22, "failed": 3}
    assert (jobs.row(13).error, jobs.row(14).title) == ("ValueError: row 13", "job 14, done")
    assert (counters.claimed, counters.completed, counters.failed, counters.lost) == (25, 22, 3, 0)
    assert "claimed 25, completed 22, failed 3" in str(counters)


def test_what_a_plain_function_returns_to_be_awaited_is_awaited(engine: Engine):
    jobs = Jobs(engine, ("error",))
    jobs.add(3)

    async def work(job: Job) -> None:
        await asyncio.sleep(0)
        if job.key == 2:
            raise ValueError("row 2")
        job.set(title=f"{job.row['title']}, done")

    Loop(engine, jobs.mapping, lambda job: work(job)).run(drain=True)
    assert jobs.statuses() == {"completed": 2, "failed": 1}
    assert (jobs.row(1).title, jobs.row(2).error) == ("job 1, done", "ValueError: row 2")


@pytest.mark.req("S3")
def test_the_claim_is_committed_before_a_handler_runs_and_each_outcome_by_itself(jobs: Jobs):
    jobs.add(3)
    seen: list[dict[Any, int]] = []

    def handler(job: Job) -> None:
        seen.append(jobs.statuses())
        with jobs.engine.begin() as connection:  # on SQLite this waits if anybody has a transaction open
            connection.execute(sa.update(jobs.table).where(jobs.table.c.id == job.key).values(title="by the handler"))

    Loop(jobs.engine, jobs.mapping, handler, batch=3).run(drain=True)
    assert seen == [{"processing": 3}, {"processing": 2, "completed": 1}, {"processing": 1, "completed": 2}]
    assert [row.title for row in jobs.rows()] == ["by the handler"] * 3


@pytest.mark.req("S4")
def test_batch_order_and_filter_are_settings(jobs: Jobs):
    jobs.add(7)
    seen: list[Any] = []
    most: list[int] = []

    def handler(job: Job) -> None:
        seen.append(job.key)
        most.append(jobs.statuses()["processing"])

    Loop(jobs.engine, jobs.mapping, handler, batch=2, order_by="-id", where=jobs.table.c.id != 5).run(drain=True)
    assert seen == [7, 6, 4, 3, 2, 1]
    assert max(most) == 2
    assert jobs.row(5).status == "queued"


@pytest.mark.req("S4")
def test_handlers_run_side_by_side_as_many_as_allowed(jobs: Jobs):
    jobs.add(8)
    together = threading.Barrier(4)
    Loop(jobs.engine, jobs.mapping, lambda job: together.wait(10) and None, concurrency=4, batch=4).run(drain=True)
    assert jobs.statuses() == {"completed": 8}


@pytest.mark.req("S5")
def test_attempts_that_fail_are_repeated_until_they_are_used_up(engine: Engine):
    jobs = Jobs(engine, max_attempts=3)
    jobs.add(2)
    tries: list[tuple[Any, int]] = []

    def handler(job: Job) -> None:
        tries.append((job.key, job.attempt))
        if job.key == 1 or job.attempt < 2:
            raise OSError("busy")

    loop = Loop(engine, jobs.mapping, handler, retry=QUICK, poll=0.01)
    with Running(loop):
        wait_for(lambda: jobs.statuses() == {"failed": 1, "completed": 1})
    assert sorted(tries) == [(1, 1), (1, 2), (1, 3), (2, 1), (2, 2)]
    assert (loop.counters.retried, loop.counters.failed, loop.counters.completed) == (3, 1, 1)
    assert (jobs.row(1).error, jobs.row(2).error) == ("OSError: busy", None)


def test_what_a_handler_answers_decides(jobs: Jobs):
    jobs.add(5)
    answers: dict[int, Callable[[], Any]] = {
        1: lambda: Skip("nothing to do"),
        2: lambda: RetryLater("1h"),
        4: lambda: "value",
    }

    def handler(job: Job) -> Any:
        if job.key == 3:
            raise Permanent("never")
        if job.key == 5:
            raise SystemExit(3)
        return answers[job.key]()

    counters = Loop(jobs.engine, jobs.mapping, handler, retry="1h").run(drain=True)
    assert [row.status for row in jobs.rows()] == ["completed", "queued", "failed", "completed", "queued"]
    assert [row.attempts for row in jobs.rows()] == [1, 0, 1, 1, 1]
    assert (counters.completed, counters.released, counters.failed, counters.retried) == (2, 1, 1, 1)
    assert "SystemExit" in jobs.row(5).error


def test_without_a_column_for_the_next_attempt_a_retry_still_waits_in_this_process(engine: Engine):
    """A row that fails at once must not be tried in a busy loop."""
    jobs = Jobs(engine, ("attempts", "error"), max_attempts=50)
    jobs.add(1)
    tries: list[float] = []

    def handler(job: Job) -> None:
        tries.append(time.monotonic())
        raise OSError("busy")

    with Running(Loop(engine, jobs.mapping, handler, retry=0.3, poll=0.01)):
        wait_for(lambda: len(tries) == 3)
    assert tries[1] - tries[0] >= 0.3 and tries[2] - tries[1] >= 0.3


@pytest.mark.req("S3")
def test_an_effect_commits_with_the_completion_or_not_at_all(jobs: Jobs):
    jobs.add(4)

    def handler(job: Job) -> None:
        job.effect(jobs.save_mark, job.key, by="loop")
        if job.key == 2:
            job.effect(lambda connection: 1 / 0)
        if job.key == 3:
            raise ValueError
        if job.key == 4:
            jobs.set(jobs.table.c.id == 4, holder="somebody else")

    counters = Loop(jobs.engine, jobs.mapping, handler, retry=None, stale_after=None).run(drain=True)
    assert jobs.marks() == {"1": 1}
    assert [row.status for row in jobs.rows()] == ["completed", "failed", "failed", "processing"]
    assert jobs.row(2).error.startswith("ZeroDivisionError")
    assert counters.lost == 1


@pytest.mark.req("S3")
def test_a_row_is_not_called_completed_when_its_effect_went_on_after_a_statement_that_failed(jobs: Jobs):
    """PostgreSQL answers COMMIT with a rollback then, and no error."""
    jobs.add(2)

    def save_twice(connection: sa.Connection) -> None:
        jobs.save_mark(connection, 1)
        with contextlib.suppress(sa.exc.DBAPIError):
            connection.exec_driver_sql("SELECT * FROM there_is_no_such_table")

    def handler(job: Job) -> None:
        if job.key == 1:
            job.effect(save_twice)

    counters = Loop(jobs.engine, jobs.mapping, handler, retry=None).run(drain=True)
    if jobs.engine.dialect.name == "sqlite":  # where a statement that failed has undone only itself
        assert jobs.statuses() == {"completed": 2} and jobs.marks() == {"1": 1}
        return
    assert (counters.completed, counters.failed) == (1, 1)
    assert jobs.statuses() == {"completed": 1, "failed": 1} and jobs.marks() == {}
    assert "begin_nested" in jobs.row(1).error


@pytest.mark.req("S3")
def test_a_row_is_not_called_completed_when_its_session_went_on_after_a_statement_that_failed(jobs: Jobs):
    jobs.add(1)

    def handler(key: int, session: Session) -> None:
        session.execute(jobs.mark.insert().values(job=str(key)))
        with contextlib.suppress(sa.exc.DBAPIError):
            session.execute(sa.text("SELECT * FROM there_is_no_such_table"))

    Loop(jobs.engine, jobs.mapping, with_session(handler), retry=None).run(drain=True)
    kept = jobs.engine.dialect.name == "sqlite"
    assert jobs.statuses() == ({"completed": 1} if kept else {"failed": 1})
    assert jobs.marks() == ({"1": 1} if kept else {})


@pytest.mark.req("F7")
@pytest.mark.fault(60)
def test_rows_that_others_edit_delete_or_re_key_meanwhile_are_theirs(jobs: Jobs):
    jobs.add(4)

    def handler(job: Job) -> None:
        with jobs.engine.begin() as connection:
            own = jobs.table.c.id == job.key
            if job.key == 1:
                connection.execute(sa.update(jobs.table).where(own).values(title="edited", note="by hand"))
            elif job.key == 2:
                connection.execute(sa.delete(jobs.table).where(own))
            elif job.key == 3:
                connection.execute(sa.update(jobs.table).where(own).values(id=33))

    counters = Loop(jobs.engine, jobs.mapping, handler, stale_after=None).run(drain=True)
    assert (counters.completed, counters.lost, counters.failed) == (2, 2, 0)
    assert [(row.id, row.status) for row in jobs.rows()] == [(1, "completed"), (4, "completed"), (33, "processing")]
    assert (jobs.row(1).title, jobs.row(1).note) == ("edited", "by hand")


@pytest.mark.req("F7")
@pytest.mark.fault(60)
def test_a_row_that_was_re_keyed_comes_back_under_its_new_key(jobs: Jobs):
    jobs.add(1)
    seen: list[Any] = []

    def handler(job: Job) -> None:
        seen.append(job.key)
        if job.key == 1:
            jobs.set(jobs.table.c.id == 1, id=11)

    with Running(Loop(jobs.engine, jobs.mapping, handler, stale_after=0.2, poll=0.02)):
        wait_for(lambda: jobs.statuses() == {"completed": 1})
    assert seen == [1, 11]


# Rows that the database refuses ---------------------------------------------------------------------------------------


def refuse(jobs: Jobs, when: str) -> None:
    """A trigger that raises for one row in twenty."""
    which = f"NEW.id % 20 = 7 AND ({when})"
    raising = "BEGIN RAISE EXCEPTION 'this row is sealed'; END"
    statements = {
        "sqlite": [
            f"CREATE TRIGGER stern BEFORE UPDATE ON jobs WHEN {which} BEGIN SELECT RAISE(ABORT, 'this row is sealed'); END"
        ],
        "postgresql": [
            f"CREATE FUNCTION stern() RETURNS trigger LANGUAGE plpgsql AS $$ {raising} $$",
            f"CREATE TRIGGER stern BEFORE UPDATE ON jobs FOR EACH ROW WHEN ({which}) EXECUTE FUNCTION stern()",
        ],
    }
    with jobs.engine.begin() as connection:
        for statement in statements[jobs.engine.dialect.name]:
            connection.execute(sa.text(statement))


@pytest.mark.req("S3")
@pytest.mark.parametrize("status", ["completed", "processing"])
def test_rows_that_a_trigger_refuses_end_as_failed_with_its_message_and_the_rest_complete(jobs: Jobs, status: str):
    """Refused on completion, or already in the claim, where the whole batch is refused because of one row."""
    jobs.add(100)
    refuse(jobs, f"NEW.status = '{status}'")
    counters = Loop(jobs.engine, jobs.mapping, nothing, retry=None, batch=10, concurrency=2).run(drain=True)
    assert jobs.statuses() == {"completed": 95, "failed": 5}
    bad = [row for row in jobs.rows() if row.status == "failed"]
    assert [row.id for row in bad] == [7, 27, 47, 67, 87]
    assert all("this row is sealed" in row.error and "UPDATE" not in row.error for row in bad)
    assert (counters.completed, counters.failed) == (95, 5)


@pytest.mark.req("S3")
def test_rows_that_cannot_be_changed_at_all_are_left_alone_and_the_rest_complete(jobs: Jobs):
    jobs.add(40)
    refuse(jobs, "true" if jobs.engine.dialect.name == "postgresql" else "1")
    counters = Loop(jobs.engine, jobs.mapping, nothing, batch=10).run(drain=True)
    assert jobs.statuses() == {"completed": 38, "queued": 2}
    assert (counters.completed, counters.refused) == (38, 2)


@pytest.mark.fault(20)
@pytest.mark.parametrize("limit", [5, "most"])
def test_a_stale_row_that_cannot_be_brought_back_does_not_keep_the_others(engine: Engine, limit: int | str):
    """Whether the number of attempts is the same for all rows, or a column."""
    columns = [sa.Column("id", sa.Integer, primary_key=True), sa.Column("most", sa.Integer, server_default="5")]
    jobs = Jobs(engine, key=columns, max_attempts=limit)
    jobs.add(30)
    claim(jobs.engine, jobs.mapping, 30, now=NOON)
    refuse(jobs, "OLD.status = 'processing'")
    counters = Loop(jobs.engine, jobs.mapping, nothing).run(drain=True)
    assert jobs.row(7).status == jobs.row(27).status == "processing"
    assert (counters.recovered, counters.refused) == (28, 2)


def test_a_loop_whose_statements_cannot_work_ends_with_the_error(jobs: Jobs):
    """Not a busy loop that fails for ever, and not one that says the rows are at fault."""
    jobs.add(3)

    def handler(job: Job) -> None:
        with jobs.engine.begin() as connection:
            connection.execute(sa.text("ALTER TABLE jobs RENAME COLUMN holder TO landlord"))

    with pytest.raises(sa.exc.DBAPIError, match="holder"):
        Loop(jobs.engine, jobs.mapping, handler, batch=1).run(drain=True)
    with jobs.engine.connect() as connection:
        assert "failed" not in connection.execute(sa.text("SELECT status FROM jobs")).scalars().all()


# Recovery -------------------------------------------------------------------------------------------------------------


@pytest.mark.req("S5", "S7")
def test_stale_rows_of_a_dead_process_come_back_and_are_worked_off(jobs: Jobs):
    jobs.add(3)
    claim(jobs.engine, jobs.mapping, 2, now=NOON)
    counters = Loop(jobs.engine, jobs.mapping, nothing).run(drain=True)
    assert jobs.statuses() == {"completed": 3}
    assert (counters.recovered, counters.completed) == (2, 3)
    assert [row.attempts for row in jobs.rows()] == [2, 2, 1]


@pytest.mark.req("D2", "D10")
def test_kinds_of_rows_that_have_loops_of_their_own_have_silence_limits_of_their_own(jobs: Jobs):
    jobs.add(0, {"title": "short"}, {"title": "long"})
    ten_minutes_ago = datetime.now(UTC) - timedelta(minutes=10)
    claim(jobs.engine, jobs.mapping, 2, now=ten_minutes_ago)
    kind = jobs.table.c.title
    short = Loop(jobs.engine, jobs.mapping, nothing, where=kind == "short", stale_after="1m")
    long = Loop(jobs.engine, jobs.mapping, nothing, where=kind == "long", stale_after="30m", poll=0.02)
    with Running(long):
        assert short.run(drain=True).recovered == 1
        assert [row.status for row in jobs.rows()] == ["completed", "processing"]
    assert long.counters.recovered == 0


@pytest.mark.req("S5", "F6")
def test_a_handler_that_runs_longer_than_stale_is_not_taken_from_a_loop_that_beats(jobs: Jobs):
    jobs.add(1)
    runs: list[int] = []
    stale = 4.0

    def handler(job: Job) -> None:
        runs.append(job.attempt)
        first = jobs.row(1).heartbeat
        wait_for(lambda: (jobs.row(1).heartbeat - first).total_seconds() > 1.2 * stale)
        assert not job.lost

    with (
        Running(Loop(jobs.engine, jobs.mapping, handler, stale_after=stale, poll=0.02)),
        Running(Loop(jobs.engine, jobs.mapping, handler, stale_after=stale, poll=0.02)),
    ):
        wait_for(lambda: jobs.statuses() == {"completed": 1})
    assert runs == [1]


@pytest.mark.fault(6)
def test_a_handler_is_told_when_its_row_is_lost(jobs: Jobs):
    jobs.add(1)
    told = threading.Event()

    def handler(job: Job) -> None:
        jobs.set(holder="somebody else")
        wait_for(lambda: job.lost)
        told.set()
        job.check()

    loop = Loop(jobs.engine, jobs.mapping, handler, stale_after=None, beat=0.02)
    loop.run(drain=True)
    assert told.is_set() and loop.counters.lost == 1
    assert (jobs.row(1).status, jobs.row(1).holder) == ("processing", "somebody else")


def test_queued_rows_without_attempts_left_are_said_to_have_failed(engine: Engine):
    jobs = Jobs(engine, max_attempts=2)
    jobs.add(0, {"attempts": 2}, {"attempts": 0})
    counters = Loop(engine, jobs.mapping, nothing).run(drain=True)
    assert [row.status for row in jobs.rows()] == ["failed", "completed"]
    assert counters.exhausted == 1


# Several, and the switch ----------------------------------------------------------------------------------------------


@pytest.mark.req("S2")
def test_several_loops_share_the_rows(jobs: Jobs):
    jobs.add(120)

    def handler(job: Job) -> None:
        job.effect(jobs.save_mark, job.key)

    loops = [Loop(jobs.engine, jobs.mapping, handler, batch=5, concurrency=2) for _ in range(3)]
    at_once(*(lambda loop=loop: loop.run(drain=True, signals=False) for loop in loops))
    assert jobs.statuses() == {"completed": 120}
    assert set(jobs.marks().values()) == {1} and len(jobs.marks()) == 120
    assert sum(loop.counters.completed for loop in loops) == 120


@pytest.mark.req("S4")
@pytest.mark.parametrize("columns", [("holder", "heartbeat"), ("heartbeat",)])
def test_no_more_instances_than_allowed_hold_rows_at_a_time(engine: Engine, columns: tuple[str, ...]):
    jobs = Jobs(engine, columns)
    jobs.add(40)
    held: list[int] = []

    def look(job: Job) -> None:
        """How many hold rows now: one at least."""
        rows = [row for row in jobs.rows() if row.status == "processing"]
        if "holder" in columns:
            held.append(len({str(row.holder).rsplit("-", 2)[-2] for row in rows}))
        else:
            held.append(len(rows) // 4)
        time.sleep(0.005)

    loops = [Loop(engine, jobs.mapping, look, batch=4, max_instances=2, poll=0.01) for _ in range(4)]
    running = [Running(loop) for loop in loops]
    for one in running:
        one.__enter__()
    try:
        wait_for(lambda: jobs.statuses() == {"completed": 40})
    finally:
        for one in running:
            one.__exit__()
    assert 1 <= max(held) <= 2


@pytest.mark.req("F8")
@pytest.mark.parametrize("guarded", [True, False])
def test_the_switch_turns_the_guard_off_and_the_counters_tell_what_it_prevents(jobs: Jobs, guarded: bool):
    """The same two loops over the same rows, both looking before either takes."""
    jobs.add(20)
    meet = threading.Barrier(2)
    met: list[int] = []

    @sa.event.listens_for(jobs.engine, "after_cursor_execute")
    def wait(connection: Any, cursor: object, statement: str, *_: object) -> None:
        if not guarded and statement.startswith("SELECT jobs.id") and "LIMIT" in statement and len(met) < 2:
            met.append(1)
            meet.wait(10)

    def handler(job: Job) -> None:
        with jobs.engine.begin() as connection:
            jobs.save_mark(connection, job.key)

    loops = [Loop(jobs.engine, jobs.mapping, handler, batch=20, guarded=guarded) for _ in range(2)]
    at_once(*(lambda loop=loop: loop.run(drain=True, signals=False) for loop in loops))
    twice = sum(loop.counters.would_have_been_taken_twice for loop in loops)
    executions = jobs.marks()
    assert jobs.statuses() == {"completed": 20}
    if guarded:
        assert (twice, set(executions.values())) == (0, {1})
    else:
        assert twice == 20 and set(executions.values()) == {2}


# Stopping -------------------------------------------------------------------------------------------------------------


@pytest.mark.fault(9)
def test_a_stop_lets_short_work_finish_and_hands_the_rest_back_uncounted(jobs: Jobs):
    jobs.add(6)
    begun = threading.Semaphore(0)
    go_on = threading.Event()

    def handler(job: Job) -> None:
        begun.release()
        if job.key == 1:
            go_on.wait(60)  # longer than the grace
        else:
            wait_for(lambda: job.stopping)

    loop = Loop(jobs.engine, jobs.mapping, handler, concurrency=2, batch=6, grace=0.5)
    with Running(loop):
        for _ in range(2):
            assert begun.acquire(timeout=10)
        started = time.monotonic()
    assert time.monotonic() - started < 0.5 + 1.0 * slowness()
    go_on.set()
    assert [(row.status, row.attempts) for row in jobs.rows()] == [
        ("queued", 0),
        ("completed", 1),
        *[("queued", 0)] * 4,
    ]
    assert (loop.counters.completed, loop.counters.released) == (1, 5)


@pytest.mark.fault(10)
def test_a_second_stop_hands_back_at_once_and_what_comes_later_is_not_heard(jobs: Jobs):
    jobs.add(1)
    begun, go_on, ended = threading.Event(), threading.Event(), threading.Event()

    def handler(job: Job) -> None:
        begun.set()
        go_on.wait(60)
        ended.set()

    loop = Loop(jobs.engine, jobs.mapping, handler, grace="10m")
    running = Running(loop)
    running.__enter__()
    assert begun.wait(10)
    loop.stop()
    running.__exit__()  # the second one
    assert (jobs.row(1).status, jobs.row(1).attempts) == ("queued", 0)
    go_on.set()
    assert ended.wait(10)
    assert claim(jobs.engine, jobs.mapping)[0].attempt == 1


# The older style, settings, logs --------------------------------------------------------------------------------------


class Base(DeclarativeBase):
    pass


class Page(Base):
    __tablename__ = "pages"
    id: Mapped[int] = mapped_column(primary_key=True)
    curation: Mapped[str] = mapped_column("curation_status", default="Queued")
    oops: Mapped[str | None]
    text: Mapped[str] = mapped_column(default="")
    who: Mapped[str | None]
    beat: Mapped[datetime | None] = mapped_column(sa.DateTime(timezone=True))
    due: Mapped[datetime | None] = mapped_column(sa.DateTime(timezone=True))
    version: Mapped[int] = mapped_column(default=0)
    __mapper_args__ = {"version_id_col": version}  # noqa: RUF012


PAGE_WORDS = {
    "status": "curation",
    "queued": "Queued",
    "processing": "Processing",
    "completed": "Complete",
    "failed": "Error",
}


@pytest.mark.req("S1", "S3")
@pytest.mark.parametrize("made_from", ["engine", "sessionmaker"])
def test_a_handler_in_the_older_style_gets_the_id_and_a_session(engine: Engine, made_from: str):
    Base.metadata.create_all(engine)
    with Session(engine) as session:
        session.add_all([Page() for _ in range(6)])
        session.commit()

    def curate(page_id: int, session: Session) -> None:
        page = session.get_one(Page, page_id)
        page.text = "curated"
        if page_id == 2:
            raise ValueError("no title")
        if page_id == 3:
            page.curation = "Complete"  # as these handlers do
        if page_id == 4:
            page.curation, page.oops = "Error", "said by the handler"

    at: Any = engine if made_from == "engine" else sessionmaker(engine)
    counters: Any = run_job_loop(
        at, Page, with_session(curate), **PAGE_WORDS, error="oops", holder="who", batch=2, poll="50ms", drain=True
    )
    with Session(engine) as session:
        pages = [(page.curation, page.text, page.oops) for page in session.scalars(sa.select(Page).order_by(Page.id))]
    assert pages == [
        ("Complete", "curated", None),
        ("Error", "", "ValueError: no title"),
        ("Complete", "curated", None),
        ("Error", "curated", "said by the handler"),
        ("Complete", "curated", None),
        ("Complete", "curated", None),
    ]
    assert (counters.completed, counters.failed, counters.lost) == (4, 2, 0)


ONLY_A_STATUS: dict[str, str] = {}
COUNTED_BY_THE_MODEL = {"version": "version"}


@pytest.mark.req("S1", "S5")
@pytest.mark.parametrize(
    "columns", [ONLY_A_STATUS, {"holder": "who"}, {"heartbeat": "beat"}, COUNTED_BY_THE_MODEL, {"next_attempt": "due"}]
)
def test_a_row_that_its_handler_sets_back_to_queued_waits_like_a_retry(engine: Engine, columns: dict[str, str]):
    """Claimed at once it would go round without end. The other rows do not wait for it."""
    Base.metadata.create_all(engine)
    with Session(engine) as session:
        session.add_all([Page() for _ in range(5)])
        session.commit()
    seen: list[int] = []

    def not_yet(page_id: int, session: Session) -> None:
        seen.append(page_id)
        page = session.get_one(Page, page_id)
        if page_id == 1 and seen.count(1) < 3:
            page.curation = "Queued"

    mapping = TableMapping(Page, **PAGE_WORDS, **columns)
    retry = 0.2 * slowness()
    loop = Loop(engine, mapping, with_session(not_yet), retry=retry, batch=2, poll="10ms")
    started = time.monotonic()
    counters = loop.run(drain=True)
    assert time.monotonic() - started >= 2 * retry
    assert sorted(seen) == [1, 1, 1, 2, 3, 4, 5] and seen[:5] == [1, 2, 3, 4, 5]
    assert (counters.claimed, counters.completed, counters.retried, counters.lost) == (7, 5, 2, 0)


@pytest.mark.req("S1", "S5")
def test_a_row_that_its_handler_always_sets_back_is_claimed_once_per_pause_whoever_runs_the_loop(engine: Engine):
    """No setting for retries is needed: without one, it waits for the next poll at least, in each process."""
    Base.metadata.create_all(engine)
    with Session(engine) as session:
        session.add(Page())
        session.commit()
    seen: list[float] = []

    def never(page_id: int, session: Session) -> None:
        seen.append(time.monotonic())
        session.get_one(Page, page_id).curation = "Queued"

    poll, loops = 0.25, 2
    mapping = TableMapping(Page, **PAGE_WORDS)
    started = time.monotonic()
    with (
        Running(Loop(engine, mapping, with_session(never), poll=poll)),
        Running(Loop(engine, mapping, with_session(never), poll=poll)),
    ):
        wait_for(lambda: len(seen) >= 4)
    assert len(seen) <= loops * (1 + (time.monotonic() - started) / poll)


@pytest.mark.req("S5")
def test_a_time_that_the_handler_has_set_for_its_next_attempt_stands(engine: Engine):
    Base.metadata.create_all(engine)
    tomorrow = datetime.now(UTC) + timedelta(days=1)
    with Session(engine) as session:
        session.add(Page())
        session.commit()

    def tomorrow_again(page_id: int, session: Session) -> None:
        page = session.get_one(Page, page_id)
        page.curation, page.due = "Queued", tomorrow

    mapping = TableMapping(Page, **PAGE_WORDS, next_attempt="due")
    counters = Loop(engine, mapping, with_session(tomorrow_again), retry="1s").run(drain=True)
    assert (counters.claimed, counters.left) == (1, Left(later=1))
    with Session(engine) as session:
        due = session.get_one(Page, 1).due
        assert due is not None and due.replace(tzinfo=UTC) == tomorrow


@pytest.mark.fault(31)
@pytest.mark.parametrize("database", ["postgres"])  # on SQLite there is one writer at a time, and no deadlock
def test_a_deadlock_between_handlers_with_sessions_is_run_again_within_the_attempt(engine: Engine):
    Base.metadata.create_all(engine)
    jobs = Jobs(engine)
    jobs.add(2)
    with Session(engine) as session:
        session.add_all([Page(), Page()])
        session.commit()
    meet = threading.Barrier(2)
    calls: list[Any] = []

    def handler(key: int, session: Session) -> None:
        calls.append(key)
        if calls.count(key) > 1:
            # Otherwise it may lock its page again before the winner, which waits for that page, has woken up: they would
            # deadlock once more.
            wait_for(lambda: jobs.row(3 - key).status == "completed")
        for place, page in enumerate((key, 3 - key)):
            session.execute(sa.update(Page).where(Page.id == page).values(text=Page.text + f"+{key}"))
            if place == 0 and len(calls) <= 2:
                meet.wait(60)

    counters = Loop(engine, jobs.mapping, with_session(handler), concurrency=2, retry=None).run(drain=True)
    assert counters.completed == 2 and len(calls) == 3
    assert [row.attempts for row in jobs.rows()] == [1, 1]
    with Session(engine) as session:
        assert all(sorted(text) == sorted("+1+2") for text in session.scalars(sa.select(Page.text)))


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"batch": 0}, "batch=0 must be a number from 1"),
        ({"concurrency": True}, "concurrency=True"),
        ({"max_instances": 0}, "max_instances=0"),
        ({"poll": 0}, "poll must be longer than zero"),
        ({"poll": "soon"}, "poll"),
        ({"stale_after": "30s", "beat": "11s"}, "too long: at most a third of stale_after, 10 s"),
        ({"retry": True}, "retry=True"),
    ],
)
def test_settings_that_cannot_work_are_refused(jobs: Jobs, settings: dict[str, Any], said: str):
    with pytest.raises(UsageError, match=said):
        Loop(jobs.engine, jobs.mapping, nothing, **settings)


def test_places_that_cannot_serve_a_loop_are_refused(engine: Engine):
    jobs = Jobs(engine, ("holder",))
    with engine.connect() as connection, pytest.raises(UsageError, match="not a Connection"):
        Loop(connection, jobs.mapping, nothing)
    with pytest.raises(UsageError, match="cannot be called"):
        Loop(engine, jobs.mapping, "handler")  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="needs a heartbeat, started or updated column"):
        Loop(engine, jobs.mapping, nothing, stale_after="1m")
    with pytest.raises(UsageError, match="in memory"):
        Loop(sa.create_engine("sqlite://"), jobs.mapping, nothing)
    with engine.connect() as connection, pytest.raises(UsageError, match="bound to one Connection"):
        Loop(sessionmaker(connection), jobs.mapping, nothing)


@pytest.mark.req("S7")
def test_a_loop_logs_what_it_does_and_how_far_it_lags(jobs: Jobs, caplog: pytest.LogCaptureFixture):
    caplog.set_level(logging.INFO, "holdfast.adopt")
    now = datetime.now(UTC)
    jobs.add(0, *[{"created": now - timedelta(minutes=5)}] * 2, {"next_attempt": now + timedelta(hours=1)})
    gate = threading.Event()
    loop = Loop(jobs.engine, jobs.mapping, lambda job: gate.wait(10) and None, batch=1, report=0.05, name="pages")
    with Running(loop):
        wait_for(lambda: loop.counters.waiting == 1)
        assert 299 < (loop.counters.lag_seconds or 0) < 300 + 30 * slowness()
        gate.set()
        wait_for(lambda: loop.counters.completed == 2)
    assert "pages: claimed 1" in caplog.text
    assert "waiting 1, lag seconds 30" in caplog.text
    assert loop.counters.as_dict()["claimed"] == 2


@pytest.mark.req("S7")
def test_a_run_of_which_every_row_failed_ends_with_a_warning_that_has_counts_and_the_most_frequent_errors(
    jobs: Jobs, caplog: pytest.LogCaptureFixture
):
    jobs.add(7)

    def handler(job: Job) -> None:
        raise ValueError("no title\nsecond line") if job.key < 6 else Permanent("gone")

    caplog.set_level(logging.WARNING, "holdfast.adopt")
    counters = Loop(jobs.engine, jobs.mapping, handler, retry=None, name="pages").run(drain=True)
    said = "claimed 7, failed 7, errors: 5 × ValueError: no title; 2 × Permanent: gone"
    assert (caplog.records[-1].levelname, caplog.records[-1].message) == ("WARNING", f"pages: {said}")
    assert (str(counters), repr(counters)) == (said, f"<Counters: {said}>")
    assert counters.errors == counters.as_dict()["errors"] == {"ValueError: no title": 5, "Permanent: gone": 2}


@pytest.mark.req("S7")
def test_a_run_without_trouble_ends_without_a_warning(jobs: Jobs, caplog: pytest.LogCaptureFixture):
    jobs.add(3)
    caplog.set_level(logging.INFO, "holdfast.adopt")
    assert str(Loop(jobs.engine, jobs.mapping, nothing).run(drain=True)) == "claimed 3, completed 3"
    assert (caplog.records[-1].levelname, caplog.records[-1].message) == ("INFO", "loop jobs: claimed 3, completed 3")


def test_errors_that_all_differ_take_no_more_room_and_hide_no_frequent_one():
    counters = Counters()
    for number in range(10_000):
        counters.add_error(f"row {number}: {'x' * 1000}")
        if number % 50 == 7:
            counters.add_error("no title")
    assert next(iter(counters.errors.items())) == ("no title", 200)
    assert len(counters.errors) == 5
    assert len(counters._errors) <= 100 and max(map(len, counters._errors)) <= 200


@pytest.mark.req("S5")
@pytest.mark.parametrize("said", [RateLimited(0.01), OutOfCredit("no money"), CredentialRefused("wrong key")], ids=repr)
def test_what_is_the_providers_doing_spends_no_attempt_of_a_row(jobs: Jobs, said: Exception):
    jobs.add(1)
    calls: list[int] = []

    def handler(job: Job) -> None:
        calls.append(job.attempt)
        raise said

    counters = Loop(jobs.engine, jobs.mapping, handler).run(once=True)
    assert calls == [1] and (counters.released, counters.failed, counters.retried) == (1, 0, 0)
    assert jobs.statuses() == {"queued": 1} and jobs.row(1).attempts == 0


# Slow and hanging handlers --------------------------------------------------------------------------------------------


class Stuck:
    """A handler that hangs on some rows until the test lets go."""

    def __init__(self, *keys: int) -> None:
        self.keys = keys
        self.go_on = threading.Event()
        self.begun: list[int] = []

    def __call__(self, job: Job) -> None:
        self.begun.append(job.key)
        if job.key in self.keys:
            self.go_on.wait(60)

    async def wait(self, job: Job) -> None:
        self.begun.append(job.key)
        while job.key in self.keys and not self.go_on.is_set():
            try:
                await asyncio.sleep(0.01)
            except asyncio.CancelledError:
                if self.go_on.is_set():
                    raise  # until then it does not let itself be cancelled


@pytest.mark.req("P23", "V7")
@pytest.mark.fault(14)
@pytest.mark.parametrize("colour", ["sync", "async"])
def test_a_handler_that_hangs_loses_its_row_after_its_timeout_and_the_others_are_done(jobs: Jobs, colour: str):
    """The attempt counts, and what the handler still says afterwards is not heard."""
    jobs.add(6)
    stuck = Stuck(2)
    handler = stuck if colour == "sync" else stuck.wait
    loop = Loop(jobs.engine, jobs.mapping, handler, timeout=0.3, retry=None, beat=0.05, stale_after=60)
    with Running(loop):
        wait_for(lambda: jobs.statuses() == {"completed": 5, "failed": 1})
        assert jobs.row(2).error.startswith("StageTimeout: ran longer than")
        assert jobs.row(2).attempts == 1
        stuck.go_on.set()
    assert jobs.statuses() == {"completed": 5, "failed": 1}
    assert (loop.counters.completed, loop.counters.failed, loop.counters.lost) == (5, 1, 0)
    assert sorted(stuck.begun) == [1, 2, 3, 4, 5, 6]


@pytest.mark.req("P23")
def test_an_async_handler_is_cancelled_at_its_timeout(jobs: Jobs):
    jobs.add(2)
    cancelled = []

    async def handler(job: Job) -> None:
        if job.key == 1:
            try:
                await asyncio.sleep(60)
            except asyncio.CancelledError:
                cancelled.append(job.key)
                raise

    Loop(jobs.engine, jobs.mapping, handler, timeout=0.1, retry=None).run(drain=True)
    assert cancelled == [1]
    assert jobs.statuses() == {"completed": 1, "failed": 1}


@pytest.mark.req("P23", "V7")
def test_rows_that_wait_behind_a_slow_one_are_handed_back_for_others_to_do(
    jobs: Jobs, caplog: pytest.LogCaptureFixture
):
    """They were claimed together with it, and another process could do them meanwhile."""
    caplog.set_level(logging.INFO, "holdfast.adopt")
    jobs.add(6)
    stuck = Stuck(1)
    slow = Loop(jobs.engine, jobs.mapping, stuck, batch=6)
    with Running(slow):
        wait_for(lambda: stuck.begun == [1])
        counters = Loop(jobs.engine, jobs.mapping, nothing, where=jobs.table.c.id > 1)
        with Running(counters):
            wait_for(lambda: jobs.statuses() == {"completed": 5, "processing": 1})
        assert {row.attempts for row in jobs.rows()} == {1}  # to be handed back costs nothing
        stuck.go_on.set()
        wait_for(lambda: jobs.statuses() == {"completed": 6})
    assert (slow.counters.completed, slow.counters.released) == (1, 5)
    assert "held up by slow rows, handed back 5 rows" in caplog.text


def test_a_timeout_must_be_longer_than_zero(jobs: Jobs):
    with pytest.raises(UsageError, match="timeout must be longer than zero"):
        Loop(jobs.engine, jobs.mapping, nothing, timeout=0)


# In child processes ---------------------------------------------------------------------------------------------------


@pytest.mark.req("P23", "V7")
@pytest.mark.fault(11)
@pytest.mark.parametrize("colour", ["sync", "async"])
def test_a_row_that_kills_its_process_ends_alone(jobs: Jobs, colour: str):
    """The loop goes on, and so do the rows beside it; each keeps its effects."""
    jobs.add(8)

    def work(job: Job) -> None:
        if job.key == 3:
            os.abort()
        if job.key == 5:
            os._exit(7)
        if job.key == 6:
            raise ValueError("six")
        job.set(title=f"by {os.getpid()}")
        job.effect(jobs.save_mark, job.key, by="child")

    async def work_async(job: Job) -> None:
        await asyncio.sleep(0)
        work(job)

    handler = work if colour == "sync" else work_async
    loop = Loop(jobs.engine, jobs.mapping, handler, isolate="process", concurrency=2, retry=None)
    counters = loop.run(drain=True)
    assert jobs.statuses() == {"completed": 5, "failed": 3}
    assert "signal 6" in jobs.row(3).error and "exit code 7" in jobs.row(5).error
    assert jobs.row(6).error == "ValueError: six"
    assert jobs.marks() == {str(key): 1 for key in (1, 2, 4, 7, 8)}
    assert f"by {os.getpid()}" not in {row.title for row in jobs.rows()}
    # Beside others a child takes a while to die: rows that wait behind it for long are handed back, and claimed again.
    assert (counters.completed, counters.failed, counters.claimed - counters.released) == (5, 3, 8)
    assert counters.errors["ValueError: six"] == 1


@pytest.mark.req("P23")
@pytest.mark.fault(14)
def test_a_handler_that_hangs_in_a_child_process_is_ended_with_all_it_started(jobs: Jobs, tmp_path: Path):
    jobs.add(3)

    def handler(job: Job) -> None:
        if job.key == 2:
            child = subprocess.Popen(["sleep", "600"])
            (tmp_path / "pids").write_text(f"{os.getpid()} {child.pid}")
            child.wait()

    Loop(jobs.engine, jobs.mapping, handler, isolate="process", timeout=1.0, retry=None).run(drain=True)
    assert jobs.statuses() == {"completed": 2, "failed": 1}
    assert jobs.row(2).error.startswith("StageTimeout")
    for pid in (tmp_path / "pids").read_text().split():
        wait_for(lambda pid=pid: not Path(f"/proc/{pid}").exists())


@pytest.mark.req("P23", "V3")
def test_a_child_process_writes_nothing_about_a_row_that_was_taken_over(jobs: Jobs):
    jobs.add(1)

    def handler(job: Job) -> None:
        engine = sa.create_engine(jobs.engine.url)
        with engine.begin() as connection:
            connection.execute(jobs.table.update().values(holder="somebody else"))
        job.effect(jobs.save_mark, job.key)

    counters = Loop(jobs.engine, jobs.mapping, handler, isolate="process", stale_after=None).run(once=True)
    assert jobs.statuses() == {"processing": 1}
    assert jobs.marks() == {} and counters.lost == 1


def test_isolation_refuses_what_it_cannot_do(jobs: Jobs, url: str):
    with pytest.raises(UsageError, match='it is "process" or None'):
        Loop(jobs.engine, jobs.mapping, nothing, isolate="thread")  # type: ignore[arg-type]
    if jobs.engine.dialect.name == "sqlite":
        with sqlite3.connect(jobs.engine.url.database or "") as connection:
            connection.execute("SELECT 1 FROM sqlite_schema").fetchall()
            with pytest.raises(UsageError, match="is open in this process"):
                Loop(jobs.engine, jobs.mapping, nothing, isolate="process").run(once=True)
        connection.close()
