"""Adopted tables on a real MariaDB: rows are shared, fenced and recovered there as on the other databases."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import count
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy import Column, Connection, DateTime, Engine, Integer, MetaData, String, Table, Text
from sqlalchemy.orm import Session

from holdfast import Backoff
from holdfast.adopt import (
    Job,
    Loop,
    TableMapping,
    claim,
    complete,
    fail,
    heartbeat,
    insert_once,
    release,
    requeue_stale,
    with_session,
)
from holdfast.adopt.rows.sql import Support, support_of
from holdfast.adopt.sqlalchemy_errors import kind_of
from holdfast.errors import LeaseLost
from tests.adopt.places import engine_on
from tests.adopt.racers import Race
from tests.adopt.tables import Jobs
from tests.support.mariadb import MariaDB
from tests.support.together import at_once
from tests.support.waiting import wait_for

pytestmark = pytest.mark.together("mariadb")

QUICK = Backoff(first_seconds=0.001, most_seconds=0.001)
NUMBERS = count(1)


@pytest.fixture(scope="module")
def server() -> Iterator[MariaDB]:
    with MariaDB() as server:
        yield server


@pytest.fixture
def url(server: MariaDB) -> str:
    return server.database(f"own{next(NUMBERS)}")


@pytest.fixture
def pair(engine: Engine) -> Engine:
    """With a table of two rows."""
    with engine.begin() as connection:
        connection.exec_driver_sql(
            "CREATE TABLE pair (id INT PRIMARY KEY, word VARCHAR(3), n TINYINT NOT NULL, CHECK (n < 100)) ENGINE=InnoDB"
        )
        connection.exec_driver_sql("INSERT INTO pair VALUES (1, 'a', 1), (2, 'b', 2)")
    return engine


class Running:
    """A loop in a thread, stopped when the test is done with it."""

    def __init__(self, loop: Loop) -> None:
        self._loop = loop
        self._thread = threading.Thread(target=lambda: loop.run(signals=False))

    def __enter__(self) -> Loop:
        self._thread.start()
        return self._loop

    def __exit__(self, *_: object) -> None:
        self._loop.stop()
        self._thread.join(30)
        assert not self._thread.is_alive()


def test_the_server_is_one_with_row_locks_that_can_be_skipped(engine: Engine, jobs: Jobs):
    with engine.connect() as connection:
        assert connection.dialect.is_mariadb
        assert support_of(connection.dialect) == Support(skip_locked=True, returning=False)
        assert connection.exec_driver_sql("SELECT @@tx_isolation").scalar() == "REPEATABLE-READ"
        stored = "SELECT engine FROM information_schema.tables WHERE table_name = 'jobs' AND table_schema = database()"
        assert connection.exec_driver_sql(stored).scalar() == "InnoDB"


# Claims ---------------------------------------------------------------------------------------------------------------


@pytest.mark.req("S2")
@pytest.mark.parametrize(("isolation", "rows"), [("REPEATABLE READ", 200), ("READ COMMITTED", 60)])
def test_two_loops_share_the_rows_and_none_is_done_twice(url: str, isolation: str, rows: int):
    engine = engine_on(url, isolation_level=isolation)
    jobs = Jobs(engine, status_type=String(20))
    with engine.begin() as connection:
        # With it, claims under REPEATABLE READ wait for each other, and may meet in a deadlock.
        connection.exec_driver_sql("CREATE INDEX by_status ON jobs (status)")
        connection.execute(jobs.table.insert(), [{"status": "queued", "title": f"job {n}"} for n in range(rows)])
    by_keys: list[set[int]] = [set(), set()]

    def loop(place: int) -> Loop:
        def handler(job: Job) -> None:
            by_keys[place].add(job.key)
            wait_for(lambda: all(by_keys))
            job.effect(jobs.save_mark, job.key)

        return Loop(engine, jobs.mapping, handler, batch=10, concurrency=2)

    loops = [loop(0), loop(1)]
    at_once(*(lambda one=one: one.run(drain=True, signals=False) for one in loops))
    assert jobs.statuses() == {"completed": rows}
    assert len(jobs.marks()) == rows and set(jobs.marks().values()) == {1}
    assert all(by_keys) and not by_keys[0] & by_keys[1]
    assert sum(one.counters.completed for one in loops) == rows
    engine.dispose()


@pytest.mark.req("S2")
def test_a_row_that_a_transaction_has_locked_is_passed_over_and_nobody_waits(jobs: Jobs):
    jobs.add(3)
    with jobs.engine.begin() as connection:
        assert [held.key for held in claim(connection, jobs.mapping, 1)] == [1]
        assert [held.key for held in claim(jobs.engine, jobs.mapping, 5, order_by="-id")] == [3, 2]


def test_an_index_on_the_status_and_read_committed_let_claims_pass_each_other(url: str):
    engine = engine_on(url, isolation_level="READ COMMITTED")
    jobs = Jobs(engine, status_type=String(20))
    jobs.add(4, {"status": "completed"})
    with engine.begin() as connection:
        connection.exec_driver_sql("CREATE INDEX by_status ON jobs (status)")
    with engine.begin() as connection:
        assert [held.key for held in claim(connection, jobs.mapping, 2)] == [1, 2]
        assert [held.key for held in claim(engine, jobs.mapping, 2)] == [3, 4]
    engine.dispose()


def test_a_key_of_two_columns_works(engine: Engine):
    key = [Column(name, Integer, primary_key=True, autoincrement=False) for name in ("world", "page")]
    jobs = Jobs(engine, key=key)
    jobs.add(0, {"world": 1, "page": 2}, {"world": 2, "page": 1}, {"world": 2, "page": 2})
    held = claim(engine, jobs.mapping, 2)
    assert [one.key for one in held] == [(1, 2), (2, 1)]
    assert len(heartbeat(engine, held).won) == 2
    complete(engine, held)
    assert jobs.statuses() == {"completed": 2, "queued": 1}


# Outcomes -------------------------------------------------------------------------------------------------------------


@pytest.mark.req("S5")
def test_a_handler_that_raises_is_tried_again_until_its_attempts_are_used_up(engine: Engine):
    jobs = Jobs(engine, max_attempts=3)
    jobs.add(4)
    attempts: list[int] = []

    def handler(job: Job) -> None:
        if job.key == 2:
            attempts.append(job.attempt)
            raise ValueError("100 % wrong")
        if job.key == 3 and job.attempt == 1:
            raise ValueError("only once")

    loop = Loop(engine, jobs.mapping, handler, retry=QUICK, poll=0.02)
    loop.run(drain=True)
    assert [(row.status, row.attempts) for row in jobs.rows()] == [
        ("completed", 1),
        ("failed", 3),
        ("completed", 2),
        ("completed", 1),
    ]
    assert attempts == [1, 2, 3]
    assert (jobs.row(2).error, jobs.row(3).error) == ("ValueError: 100 % wrong", None)
    assert (loop.counters.retried, loop.counters.failed) == (3, 1)


@pytest.mark.req("S5")
def test_a_retry_waits_on_the_servers_clock(jobs: Jobs):
    jobs.add(1)
    [held] = claim(jobs.engine, jobs.mapping)
    fail(jobs.engine, held, "not yet", retry_after=3600)
    with jobs.engine.connect() as connection:
        wait = sa.func.timestampdiff(sa.literal_column("SECOND"), sa.func.utc_timestamp(), jobs.table.c.next_attempt)
        assert 3500 < connection.execute(sa.select(wait)).scalar_one() <= 3600
    assert claim(jobs.engine, jobs.mapping) == []


@pytest.mark.req("S3", "F6")
def test_a_row_that_was_taken_over_is_refused_to_its_first_holder(jobs: Jobs):
    jobs.add(2)
    late = claim(jobs.engine, jobs.mapping, 2, holder="late")
    assert requeue_stale(jobs.engine, jobs.mapping, 0.0, where=jobs.table.c.id == 1).queued == (1,)
    [new] = claim(jobs.engine, jobs.mapping, holder="new")
    for refused in (complete, release, lambda at, rows: fail(at, rows, "late")):
        with pytest.raises(LeaseLost, match="row 1"):
            refused(jobs.engine, late)
    assert jobs.statuses() == {"processing": 2}, "nothing was saved of the other row either"
    beaten = heartbeat(jobs.engine, late)
    assert [one.key for one in beaten.lost] == [1] and [one.key for one in beaten.won] == [2]
    complete(jobs.engine, new)
    assert complete(jobs.engine, new).again, "sent again after a reply was lost, it is no loss"


@pytest.mark.fault(31)
def test_a_deadlock_between_handlers_is_run_again_within_the_attempt(jobs: Jobs, pair: Engine):
    jobs.add(2)
    meeting = threading.Barrier(2)

    def handler(key: int, session: Session) -> None:
        for row in (key, 3 - key):
            session.execute(sa.text("UPDATE pair SET n = n + 1 WHERE id = :row"), {"row": row})
            with suppress(threading.BrokenBarrierError):
                meeting.wait(1)  # who is run again comes alone
                meeting.abort() if row != key else None

    Loop(pair, jobs.mapping, with_session(handler), concurrency=2, batch=2).run(drain=True)
    assert [(row.status, row.attempts) for row in jobs.rows()] == [("completed", 1)] * 2
    with pair.connect() as connection:
        assert connection.exec_driver_sql("SELECT n FROM pair").scalars().all() == [3, 4]


# Recovery -------------------------------------------------------------------------------------------------------------


@pytest.mark.req("S5")
@pytest.mark.fault(1)
def test_rows_of_a_killed_process_come_back_and_are_done_by_another(url: str, engine: Engine, tmp_path: Path):
    jobs = Jobs(engine, max_attempts=100)
    may_end = tmp_path / "may end"
    jobs.add(0, *({"title": f"until {may_end}", "created_as": str(n)} for n in (1, 2)))
    race = Race(url, tmp_path)
    try:
        first = race.start("--batch", "2", "--stale", "60")
        wait_for(lambda: jobs.statuses() == {"processing": 2})
        first.kill()
        may_end.touch()
        other = race.start("--batch", "2", "--stale", "0.5")
        wait_for(lambda: jobs.statuses() == {"completed": 2})
        assert jobs.marks() == {"1": 1, "2": 1}
        assert [row.attempts for row in jobs.rows()] == [2, 2]
        assert other.stop() == 0 and other.counters["recovered"] == 2
    finally:
        race.end()


@pytest.mark.req("S5")
def test_a_stale_row_without_attempts_left_fails_and_says_why(engine: Engine):
    jobs = Jobs(engine, max_attempts=1)
    jobs.add(2)
    claim(engine, jobs.mapping, 1)
    assert requeue_stale(engine, jobs.mapping, "1h") == requeue_stale(engine, jobs.mapping, 60)
    found = requeue_stale(engine, jobs.mapping, 0.0)
    assert (found.failed, found.queued) == ((1,), ())
    assert jobs.row(1).error.startswith("attempt 1 sent no heartbeat for")
    assert jobs.row(1).holder is None


@pytest.mark.req("S5", "F6")
def test_a_row_whose_loop_sends_heartbeats_is_not_taken_from_it(jobs: Jobs):
    jobs.add(1)
    runs: list[int] = []
    # Three heartbeats fit in, so that it takes nearly three seconds without a turn for one to come too late.
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


def test_heartbeats_pass_over_a_row_that_its_handlers_transaction_has_locked(jobs: Jobs):
    jobs.add(2)
    held = claim(jobs.engine, jobs.mapping, 2)
    with jobs.engine.begin() as connection:
        connection.execute(sa.update(jobs.table).where(jobs.table.c.id == 1).values(title="by the handler"))
        beaten = heartbeat(jobs.engine, held)
    assert [one.key for one in beaten.won] == [1, 2] and not beaten.lost
    assert jobs.row(1).heartbeat < jobs.row(2).heartbeat


def test_two_heartbeats_in_one_second_count_where_columns_keep_whole_seconds(engine: Engine):
    """The second one changes nothing in the row, which MariaDB would count as no row unless the driver asks otherwise."""
    names = ("started", "beat")
    own = [Column("id", Integer, primary_key=True), Column("status", Text), *(Column(name, DateTime) for name in names)]
    table = Table("whole", MetaData(), *own)
    table.create(engine)
    with engine.begin() as connection:
        connection.execute(table.insert().values(status="queued"))
    mapping = TableMapping(table, started="started", heartbeat="beat")
    held = claim(engine, mapping)
    for _ in range(5):
        held = list(heartbeat(engine, held).won)
        assert len(held) == 1
    complete(engine, held)


@pytest.mark.fault(30)
def test_a_loop_whose_connections_are_killed_goes_on(server: MariaDB, jobs: Jobs):
    jobs.add(12)
    database = jobs.engine.url.database

    def handler(job: Job) -> None:
        if job.key in (3, 7):
            for (number,) in server.execute(f"SELECT id FROM information_schema.processlist WHERE db = '{database}'"):
                with suppress(Exception):  # gone by itself
                    server.execute(f"KILL {number}")
        job.effect(jobs.save_mark, job.key)

    Loop(jobs.engine, jobs.mapping, handler, batch=4, poll=0.02).run(drain=True)
    assert jobs.statuses() == {"completed": 12}
    assert set(jobs.marks().values()) == {1} and [row.attempts for row in jobs.rows()] == [1] * 12


# Stopping -------------------------------------------------------------------------------------------------------------


@pytest.mark.fault(14)
def test_a_handler_that_hangs_loses_its_row_after_its_timeout_and_the_others_are_done(jobs: Jobs):
    jobs.add(4)
    go_on = threading.Event()

    def handler(job: Job) -> None:
        if job.key == 2:
            go_on.wait(60)

    with Running(Loop(jobs.engine, jobs.mapping, handler, timeout=0.3, retry=None, beat=0.05, stale_after=60)) as loop:
        wait_for(lambda: jobs.statuses() == {"completed": 3, "failed": 1})
        assert jobs.row(2).error.startswith("StageTimeout: ran longer than")
        go_on.set()
    assert (loop.counters.completed, loop.counters.failed, loop.counters.lost) == (3, 1, 0)


@pytest.mark.fault(9)
def test_a_stop_hands_rows_back_without_counting_the_attempt(jobs: Jobs):
    jobs.add(4)
    begun, go_on = threading.Event(), threading.Event()

    def handler(job: Job) -> None:
        begun.set()
        go_on.wait(60)

    with Running(Loop(jobs.engine, jobs.mapping, handler, batch=4, grace=0.1)) as loop:
        assert begun.wait(30)
    go_on.set()
    assert [(row.status, row.attempts, row.holder) for row in jobs.rows()] == [("queued", 0, None)] * 4
    assert loop.counters.released == 4


# Insert once ----------------------------------------------------------------------------------------------------------


@pytest.fixture
def entries(engine: Engine) -> Table:
    own = [Column("id", Integer, primary_key=True), Column("slug", String(50), unique=True), Column("by_whom", Text)]
    table = Table("entries", MetaData(), *own)
    table.create(engine)
    return table


@pytest.mark.req("S6")
def test_of_several_that_insert_the_same_row_at_once_one_makes_it(engine: Engine, entries: Table):
    for slug in map(str, range(10)):
        made = at_once(
            *(
                lambda who=who, slug=slug: insert_once(
                    engine, entries, {"slug": slug, "by_whom": str(who)}, unique_on="slug"
                )
                for who in range(4)
            )
        )
        assert sum(one.created for one in made) == 1
        assert len({(one.row.id, one.row.by_whom) for one in made}) == 1


@pytest.mark.req("S6")
def test_a_row_that_is_newer_than_the_snapshot_of_the_transaction_is_found(engine: Engine, entries: Table):
    with engine.begin() as connection:
        assert connection.execute(sa.select(entries)).all() == []
        assert insert_once(engine, entries, {"slug": "a"}, unique_on="slug").created
        there, created = insert_once(connection, entries, {"slug": "a"}, unique_on="slug")
        assert (there.slug, created) == ("a", False)
        assert insert_once(connection, entries, {"slug": "b"}, unique_on="slug").created, "the transaction goes on"


@pytest.mark.req("S6")
def test_another_constraint_speaks_for_itself(engine: Engine, entries: Table):
    insert_once(engine, entries, {"id": 1, "slug": "a"}, unique_on="slug")
    with pytest.raises(sa.exc.IntegrityError, match="PRIMARY"):
        insert_once(engine, entries, {"id": 1, "slug": "b"}, unique_on="slug")


@pytest.mark.fault(31)
def test_a_deadlock_in_an_insert_is_raised_as_one(engine: Engine, entries: Table):
    """Not as the absence of a savepoint, which the deadlock has removed."""
    for slug in ("a", "b"):
        insert_once(engine, entries, {"slug": slug}, unique_on="slug")
    error = _deadlock(
        engine,
        lambda one, slug: one.execute(sa.update(entries).where(entries.c.slug == slug).values(by_whom="x")),
        lambda one, slug: insert_once(one, entries, {"slug": slug}, unique_on="slug"),
        ("a", "b"),
    )
    assert error.orig.args[0] == 1213 and kind_of(error) == "conflict"


# Errors ---------------------------------------------------------------------------------------------------------------


def _deadlock(
    engine: Engine, first: Callable[[Connection, Any], Any], second: Callable[[Connection, Any], Any], keys: Any
) -> Any:
    """Two transactions, each of which has one of two rows and wants the other's: what the loser is told."""
    meeting = threading.Barrier(2)

    def one(own: Any, other: Any) -> BaseException | None:
        with engine.connect() as connection:
            first(connection, own)
            meeting.wait(30)
            try:
                second(connection, other)
            except sa.exc.DBAPIError as error:
                return error
            return None

    found = at_once(lambda: one(*keys), lambda: one(*reversed(keys)))
    [error] = [error for error in found if error is not None]
    return error


def _run(*statements: str) -> Callable[[Engine], None]:
    def run(engine: Engine) -> None:
        with engine.connect() as connection:
            for statement in statements:
                connection.exec_driver_sql(statement)

    return run


def _beside(own: str, *statements: str) -> Callable[[Engine], None]:
    """Statements after which another transaction, still open, has done this."""

    def run(engine: Engine) -> None:
        with engine.connect() as other:
            other.exec_driver_sql(own)
            _run(*statements)(engine)

    return run


def _connect(**parts: Any) -> Callable[[Engine], None]:
    def run(engine: Engine) -> None:
        sa.create_engine(engine.url.set(**parts)).connect()

    return run


def _killed(how: str, busy: bool) -> Callable[[Engine], None]:
    def run(engine: Engine) -> None:
        with engine.connect() as connection, engine.connect() as other:
            number = connection.exec_driver_sql("SELECT connection_id()").scalar_one()
            asleep = f"SELECT count(*) FROM information_schema.processlist WHERE id = {number} AND state = 'User sleep'"

            def kill() -> None:
                if busy:
                    wait_for(lambda: other.exec_driver_sql(asleep).scalar_one())
                other.exec_driver_sql(f"KILL {how} {number}")

            if busy:
                at_once(kill, lambda: connection.exec_driver_sql("SELECT n, sleep(60) FROM pair"))
            else:
                kill()
                connection.exec_driver_sql("SELECT 1")

    return run


def _changed_since_the_snapshot(engine: Engine) -> None:
    with engine.connect() as connection:
        connection.exec_driver_sql("SET innodb_snapshot_isolation = ON")
        connection.exec_driver_sql("SELECT * FROM pair")
        with engine.begin() as other:
            other.exec_driver_sql("UPDATE pair SET n = 5 WHERE id = 1")
        connection.exec_driver_sql("UPDATE pair SET n = 6 WHERE id = 1")


SIGNALS = (
    "CREATE TRIGGER no BEFORE UPDATE ON pair FOR EACH ROW SIGNAL SQLSTATE '45000' SET message_text = 'no'",
    "UPDATE pair SET n = 7",
)
UPDATE = "UPDATE pair SET n = 3 WHERE id = 1"
ERRORS: dict[str, tuple[int, str, Callable[[Engine], None]]] = {
    "a row that changed since the snapshot": (1020, "conflict", _changed_since_the_snapshot),
    "a lock that is not free in time": (1205, "conflict", _beside(UPDATE, "SET innodb_lock_wait_timeout = 1", UPDATE)),
    "a lock that is not waited for": (1205, "conflict", _beside(UPDATE, "SELECT * FROM pair FOR UPDATE NOWAIT")),
    "an idle connection that was killed": (2006, "passing", _killed("CONNECTION", busy=False)),
    "a busy connection that was killed": (2013, "passing", _killed("CONNECTION", busy=True)),
    "a statement that was killed": (1317, "passing", _killed("QUERY", busy=True)),
    "a statement that took too long": (
        1969,
        "passing",
        _run("SET STATEMENT max_statement_time = 0.1 FOR SELECT n, sleep(60) FROM pair"),
    ),
    "a transaction that only reads": (1792, "passing", _run("START TRANSACTION READ ONLY", UPDATE)),
    "a server that is not there": (2003, "passing", _connect(query={"unix_socket": "/nowhere/socket"})),
    "a key that is there": (1062, "refused", _run("INSERT INTO pair VALUES (1, 'c', 3)")),
    "a text that is too long": (1406, "refused", _run("UPDATE pair SET word = 'four'")),
    "a number that is too large": (1264, "refused", _run("UPDATE pair SET n = 1000")),
    "a number that is none": (1366, "refused", _run("INSERT INTO pair VALUES ('x', 'c', 3)")),
    "a column that has no default": (1364, "refused", _run("INSERT INTO pair (id) VALUES (3)")),
    "a date that is none": (1292, "refused", _run("CREATE TABLE days (day DATE)", "INSERT INTO days VALUES ('soon')")),
    "a division by zero": (1365, "refused", _run("UPDATE pair SET n = 1 / 0")),
    "a sum that is too large": (1690, "refused", _run("UPDATE pair SET n = 18446744073709551615 + id")),
    "a NULL": (1048, "refused", _run("INSERT INTO pair VALUES (3, 'c', NULL)")),
    "a CHECK": (4025, "refused", _run("UPDATE pair SET n = 100")),
    "a trigger": (1644, "refused", _run(*SIGNALS)),
    "a user who is not known": (1045, "broken", _connect(username="nobody", password="wrong")),
    "a database that is not there": (1049, "broken", _connect(database="nowhere")),
    "a table that is not there": (1146, "broken", _run("SELECT * FROM nothing")),
    "a column that is not there": (1054, "wrong", _run("SELECT nothing FROM pair")),
    "a statement that is none": (1064, "wrong", _run("SELEKT")),
}


@pytest.mark.parametrize("name", ERRORS)
def test_a_real_error_is_judged_by_its_number(pair: Engine, name: str):
    number, kind, provoke = ERRORS[name]
    with pytest.raises(sa.exc.DBAPIError) as caught:
        provoke(pair)
    error: Any = caught.value
    assert (error.orig.args[0], str(kind_of(error))) == (number, kind)
    assert str(kind_of(_by_an_older_driver(error))) == kind


def _by_an_older_driver(error: Any) -> Any:
    """The same error from a driver that gives no SQLSTATE, as PyMySQL before 1.2."""
    error.orig.sqlstate = None
    return error


def test_a_real_deadlock_is_a_conflict(pair: Engine):
    def change(connection: Connection, row: int) -> None:
        connection.exec_driver_sql("UPDATE pair SET n = 9 WHERE id = %s", (row,))

    error = _deadlock(pair, change, change, (1, 2))
    assert error.orig.args[0] == 1213 and kind_of(error) == "conflict"
