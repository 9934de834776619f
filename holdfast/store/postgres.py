"""PostgreSQL: one database, any number of machines.

Nothing is kept in a session. Every transaction begins with all that it needs (its isolation, its time limit, its mark, a
shared lock against registrations) in one round trip, so that a pooler in between makes no difference.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, cast

import psycopg
from psycopg import sql

from holdfast.clock import Clock
from holdfast.errors import StoreConflict, StoreError, StoreUnavailable, UsageError
from holdfast.model.log_lines import logger
from holdfast.schema import LaterIndex
from holdfast.store import postgres_indexes
from holdfast.store.async_connection import AwaitedPostgres
from holdfast.store.database_errors import is_innocent
from holdfast.store.driver import MARKING, Begun, Forkable, Limits, Mark, Row, quietly
from holdfast.store.postgres_address import lock_key, read_url
from holdfast.store.postgres_dialect import NOW, PostgresDialect
from holdfast.store.postgres_news import Notifications, telling
from holdfast.store.postgres_prepared import Asked, CursorLine, PostgresLine, Wire
from holdfast.store.postgres_server import connect, raise_as_ours, translated
from holdfast.store.slow_calls import watch
from holdfast.store.statements import GENERATION, Statement
from holdfast.store.store import Store

log = logger("holdfast.store")

#: From this many rows on, COPY is faster, although it takes one more round trip.
COPY_FROM = 16
#: How late a server may be in ending a read that has a limit; then the connection is given up.
GRACE_SECONDS = 2.0


class Postgres(Forkable):
    """A connection to one schema of one database."""

    def __init__(
        self, conninfo: str, dialect: PostgresDialect, where: str, clock: Clock | None, limits: Limits
    ) -> None:
        super().__init__()
        self.dialect = dialect
        self.clock_name = clock.name if clock else "database"
        self._clock = clock
        self._conninfo = conninfo
        self._where = where
        self._limits = limits
        self._busy_since = 0.0
        self._lock_key = lock_key(dialect.schema)
        self._marking = dialect.render("marking", MARKING).text
        self._conn: psycopg.Connection[Row] | None = None
        self._line: PostgresLine | None = None
        #: When the server was to have ended the read that runs.
        self._give_up_at: float | None = None
        #: Whether it uses a connection of the caller's, who commits.
        self._is_guest = False
        #: The search path of the caller's transaction before we joined it.
        self._callers_path = ""
        #: Whether the next statement is a transaction of its own.
        self._is_alone = False
        #: What identifies this store, once a caller's connection was compared with it.
        self._place: tuple[Any, ...] | None = None
        #: Sent with the next statement, since nobody waits for the answer.
        self._later: list[Asked] = []
        #: Sent with COMMIT: the mark of this transaction, unless it was left at the beginning, and the notification.
        self._mark: Mark | None = None
        self._news: str | None = None
        watch(self)

    @classmethod
    def store(cls, url: str, *, clock: Clock | None) -> Store:
        conninfo, schema, where = read_url(url)
        dialect = PostgresDialect(schema)
        return Store("postgres", lambda limits: cls(conninfo, dialect, where, clock, limits), where)

    # Transactions -------------------------------------------------------------------------------------------------

    def begin(self, mark: Mark, *, exclusive: bool, in_doubt: bool) -> Begun:
        # Each statement sees what was committed before it, so the generation is read after the lock is held.
        lock = "pg_advisory_xact_lock" if exclusive else "pg_advisory_xact_lock_shared"
        asked = self._begin_text(_PINNED, f"pg_catalog.{lock}({self._lock_key})")
        if in_doubt:
            asked.append((self._marking, self._to_mark(mark)))
        self._mark = None if in_doubt else mark
        [*_, [(now, generation)]] = answers = self._together([*asked, (f"SELECT {NOW}, {self._generation}", {})])
        return self._begun(now, generation, not in_doubt or bool(answers[2]))

    @property
    def far(self) -> Postgres:
        return self

    def at_once(
        self, mark: Mark, statement: Statement, params: dict[str, Any], stages: Collection[int]
    ) -> tuple[list[Row], int]:
        params |= self._to_mark(mark)
        news: list[Asked] = [(telling(self.dialect.schema, stages), None)] if stages else []
        asked = [
            *self._begin_text(_PINNED, f"pg_catalog.pg_advisory_xact_lock_shared({self._lock_key})", NOW),
            (statement.text, params),
            *news,
            ("COMMIT", None),
        ]
        with self._marked_once():
            [_, [(*_, now)], rows, *_] = self._together(asked)
        return rows, self._begun(now, -1, True).now

    def ready(self) -> None:
        self._ready_line()
        self._is_alone = True

    def begin_read(self, within_seconds: float | None = None) -> Begun:
        begin = "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY"
        settings = f"{_OWN_PATH}, {_PINNED_READS}"
        if within_seconds is not None:
            self._give_up_at = time.monotonic() + within_seconds
            limit = max(1, round(within_seconds * 1000))
            settings += f", pg_catalog.set_config('statement_timeout', '{limit}', true)"
        [_, [(now, *_)]] = self._together([(begin, None), (f"SELECT {NOW}, {settings}", {})])
        return self._begun(now, -1, True)

    def check_read(self) -> None:
        """Nothing to check: the server's snapshots are consistent."""

    @property
    def _generation(self) -> str:
        return GENERATION.replace("holdfast_pipelines", self.dialect.table("pipelines"))

    def over(self, raw: Any) -> Postgres:
        if not isinstance(raw, psycopg.Connection | AwaitedPostgres):
            raise UsageError(f"a psycopg connection to {self._where} is needed, not a {type(raw).__name__}")
        if raw.autocommit and raw.info.transaction_status is psycopg.pq.TransactionStatus.IDLE:
            raise UsageError(
                f"the connection to {self._where} commits each statement by itself: begin a transaction first"
            )
        guest = Postgres(self._conninfo, self.dialect, self._where, self._clock, Limits())
        guest._is_guest = True
        guest._conn = cast(psycopg.Connection[Row], raw)
        guest._line = CursorLine(guest._conn)
        there = guest._find_place()
        if there != self._place:
            # Asked only if it differs: the caller may hold the last session of the pooler.
            self._place = self._find_place()
        if there != self._place:
            raise UsageError(f"the connection is to another database ({raw.info.dbname}), the store is {self._where}")
        return guest

    def _find_place(self) -> tuple[Any, ...]:
        """What identifies this store among all others: its database, its tables, and when they were made."""
        schema = self.dialect.schema
        table = sql.Literal(f"{schema}.schema_version").as_string(None)
        [found] = self.run_text(f"SELECT pg_catalog.current_database(), pg_catalog.to_regclass({table})::oid::bigint")
        oldest = f"SELECT pg_catalog.min(migrated_at) FROM {schema}.schema_version"
        since = self.run_text(oldest) if found[1] is not None else []
        return (*found, *since)

    def begin_within(self) -> Begun:
        lock = f"pg_catalog.pg_advisory_xact_lock_shared({self._lock_key})"
        [(self._callers_path, *_)] = self._execute(f"SELECT {_PATH}, {lock}, {_OWN_PATH}", None)
        [(now, generation)] = self._execute(f"SELECT {NOW}, {self._generation}", {})
        return self._begun(now, generation, True)

    def end_within(self) -> None:
        path = sql.Literal(self._callers_path).as_string(None)
        self._execute(f"SELECT pg_catalog.set_config('search_path', {path}, true)", None)

    def begin_bare(self, lock_seconds: float = 0.0) -> int:
        # The schema is created only if it is missing: a role may use it without the right to create one.
        named = sql.Literal(self.dialect.schema_name).as_string(None)
        patience = f"pg_catalog.set_config('lock_timeout', '{round(lock_seconds * 1000)}', true)"
        [*_, exists, [(now,)]] = self._together(
            [
                *self._begin_text(patience, f"pg_catalog.pg_advisory_xact_lock({self._lock_key})"),
                (f"SELECT 1 FROM pg_namespace WHERE nspname = {named}", None),
                (f"SELECT {NOW}", None),
            ]
        )
        self._mark = None
        if not exists:
            self.run_text(f"CREATE SCHEMA IF NOT EXISTS {self.dialect.schema}")
        return self._begun(now, 0, True).now

    def run(self, statement: Statement, params: dict[str, Any]) -> list[Row]:
        return self._execute(statement.text, params)

    def run_rows(self, statement: Statement, rows: Sequence[Sequence[Any]], params: dict[str, Any]) -> list[Row]:
        if len(rows) >= COPY_FROM and (text := self.dialect.copy_text(statement)) is not None:
            shared = [params[name] for name in statement.shared]
            lines = self.dialect.pack_copy([[*shared, *row] for row in rows] if shared else rows)
            if lines is not None:
                self._copy(text, lines)
                return []
        params["rows"] = self.dialect.pack_rows(rows)
        if statement.row and not self._is_guest:
            self._later.append((statement.text, params))
            return []
        return self._execute(statement.text, params)

    def run_text(self, text: str) -> list[Row]:
        self._ready_line()
        return self._execute(text, None)

    def columns(self) -> list[str]:
        assert self._line is not None
        return self._line.columns()

    def commit(self) -> None:
        asked: list[Asked] = []
        if self._mark is not None:
            # If the mark exists, its owner has given up on this write and done it again.
            asked.append((f"WITH mark AS ({self._marking}) SELECT 1 / COUNT(*) FROM mark", self._to_mark(self._mark)))
        if self._news is not None:
            # Last, because NOTIFY queues behind every other commit that notifies.
            asked.append((self._news, None))
        self._mark = self._news = None
        with self._marked_once():
            self._together([*asked, ("COMMIT", None)])

    def before_whole_tables(self) -> None:
        self._execute(_reset((*_PLANNER, *_COSTLY)), None)

    def before_user_code(self) -> None:
        self._execute(_reset((*_PLANNER, *_COSTLY, "search_path")), None)

    def after_user_code(self) -> None:
        self._execute(f"SELECT {_OWN_PATH}, {_PINNED}", None)

    def check_user_code(self) -> None:
        if self._status is psycopg.pq.TransactionStatus.INERROR:
            raise UsageError(
                "a statement failed and the effect went on, but PostgreSQL does nothing more in that transaction: let the "
                "error out, or put what may fail into `with connection.begin_nested():`"
            )

    @property
    def lost(self) -> bool:
        return self._conn is None or self._conn.closed

    def trouble(self, error: BaseException) -> StoreError | None:
        if self._status is psycopg.pq.TransactionStatus.IDLE:
            return StoreConflict(f"{self._where}: user code ended the transaction it was part of: {error}")
        raw = error.__cause__ if isinstance(error, StoreError) else getattr(error, "orig", error)
        return translated(raw, self._where) if isinstance(raw, psycopg.Error) and is_innocent(raw) else None

    @property
    def _status(self) -> psycopg.pq.TransactionStatus:
        return self._conn.info.transaction_status if self._conn else psycopg.pq.TransactionStatus.UNKNOWN

    def rollback(self) -> None:
        self._mark = self._news = None
        self._is_alone = False
        self._give_up_at = None
        self._later.clear()
        if self._conn is None or self.pid != os.getpid():
            return
        if self._conn.closed or self._conn.info.transaction_status not in (
            psycopg.pq.TransactionStatus.INTRANS,
            psycopg.pq.TransactionStatus.INERROR,
            psycopg.pq.TransactionStatus.IDLE,
        ):
            if self._status is psycopg.pq.TransactionStatus.ACTIVE:
                # The caller was interrupted while waiting: cancel the statement, since nobody wants its answer.
                with quietly(psycopg.Error):
                    self._conn.cancel_safe(timeout=1.0)
            self._drop()
        elif self._conn.info.transaction_status != psycopg.pq.TransactionStatus.IDLE:
            try:
                self._busy_since = time.monotonic()
                self._ready_line().ask("ROLLBACK", None)
            except psycopg.Error:
                self._drop()
            finally:
                self._busy_since = 0.0

    @property
    def connection(self) -> psycopg.Connection[Row]:
        if self.pid != os.getpid():
            raise StoreError("a forked process must open a store of its own")
        if self._conn is None or self._conn.closed:
            self._conn = connect(self._conninfo, self._where)
            self._line = None
        return self._conn

    def notify(self, stages: Collection[int]) -> None:
        if self._is_guest:
            self._execute(telling(self.dialect.schema, stages), None)
        else:
            self._news = telling(self.dialect.schema, stages)

    def listener(self) -> Notifications:
        return Notifications(self, self.dialect.schema)

    def close(self) -> None:
        if self.pid == os.getpid():
            self._drop()

    def descriptors(self) -> list[int]:
        if self._conn is None or self._conn.closed:
            return []
        return [self._conn.fileno()]

    def integrity(self) -> str:
        # The server checks its own pages, if it was set up with checksums.
        return "ok"

    def facts(self) -> dict[str, Any]:
        names = [
            "server_version",
            "fsync",
            "synchronous_commit",
            "full_page_writes",
            "default_transaction_isolation",
            "TimeZone",
        ]
        settings = {name.lower(): self.run_text(f"SHOW {name}")[0][0] for name in names}
        # A role outside pg_read_all_stats does not see what sessions of other roles do.
        [(oldest, process, hidden)] = self.run_text(
            "SELECT EXTRACT(epoch FROM now() - MIN(xact_start))::float8, "
            "(array_agg(pid ORDER BY xact_start) FILTER (WHERE xact_start IS NOT NULL))[1], "
            "COUNT(*) FILTER (WHERE query = '<insufficient privilege>') "
            "FROM pg_stat_activity WHERE pid <> pg_backend_pid() AND datname = current_database()"
        )
        return {
            "database": "postgresql",
            "where": self._where,
            "schema": self.dialect.schema,
            "driver": psycopg.__version__,
            **settings,
            "oldest_transaction_seconds": None if oldest is None and hidden else round(oldest or 0.0, 1),
            "oldest_transaction_process": process,
            "hidden_sessions": hidden,
        }

    def unbuilt(self, indexes: Sequence[LaterIndex]) -> list[LaterIndex]:
        return postgres_indexes.unbuilt(self.run_text, self.dialect, indexes)

    def build(self, index: LaterIndex) -> None:
        postgres_indexes.build(self.run_text, self.dialect, index)

    def cannot_write(self) -> str | None:
        # A server does not report its free space. Some are switched to read-only when there is none.
        [(standby, read_only)] = self.run_text(
            "SELECT pg_is_in_recovery(), current_setting('default_transaction_read_only') = 'on'"
        )
        if standby:
            return f"{self._where} is a standby: nothing can be saved there"
        if read_only:
            return f"{self._where} takes no writes now (a full disk is a common reason): nothing can be saved"
        return None

    def lock(self, name: str) -> Postgres | None:
        # In a transaction that stays open: behind a pooler, the lock of a session would be left behind in it. Between two
        # statements it holds no snapshot, so it keeps no old rows alive.
        key = lock_key(f"{self.dialect.schema}/run/{name}")
        timeouts = "('idle_in_transaction_session_timeout', 'transaction_timeout')"
        [_, _, _, [(taken,)]] = self._together(
            [
                ("BEGIN ISOLATION LEVEL READ COMMITTED READ ONLY", None),
                (f"SELECT {_OWN_PATH}", None),
                (f"SELECT set_config(name, '0', true) FROM pg_catalog.pg_settings WHERE name IN {timeouts}", None),
                (f"SELECT pg_catalog.pg_try_advisory_xact_lock({key})", None),
            ]
        )
        return self if taken else None

    def hides(self) -> str | None:
        schema = sql.Literal(self.dialect.schema_name).as_string(None)
        [(tables, role)] = self.run_text(
            "SELECT string_agg(c.relname, ', ' ORDER BY c.relname), current_user FROM pg_catalog.pg_class c "
            f"WHERE c.relnamespace = (SELECT n.oid FROM pg_catalog.pg_namespace n WHERE n.nspname = {schema}) "
            "AND c.relkind = 'r' AND c.relrowsecurity AND row_security_active(c.oid)"
        )
        return f"row-level security of {tables} hides rows from the role {role}" if tables else None

    def look(self, now: float) -> None:
        since, until, longest = self._busy_since, self._give_up_at, self._limits.answer_seconds
        if since and ((longest and now - since > longest) or (until is not None and now > until + GRACE_SECONDS)):
            self._busy_since = 0.0
            log.warning("%s has not answered for %.0f s: giving up this connection", self._where, now - since)
            with quietly(OSError, psycopg.Error):
                conn = self._conn
                if conn is not None:
                    with socket.socket(fileno=os.dup(conn.fileno())) as line:
                        line.shutdown(socket.SHUT_RDWR)

    # The parts ----------------------------------------------------------------------------------------------------

    def _begin_text(self, *more: str) -> list[Asked]:
        """The statements that begin a transaction and evaluate these expressions."""
        idle = f"pg_catalog.set_config({_IDLE}, '{round(self._limits.idle_seconds * 1000)}', true)"
        return [("BEGIN ISOLATION LEVEL READ COMMITTED", None), (f"SELECT {', '.join([idle, _OWN_PATH, *more])}", {})]

    def _to_mark(self, mark: Mark) -> dict[str, Any]:
        return {**mark._asdict(), "now": None if self._clock is None else self._clock.now()}

    @contextmanager
    def _marked_once(self) -> Iterator[None]:
        try:
            yield
        except psycopg.errors.DivisionByZero:
            raise StoreConflict(f"{self._where}: this write was given up, and done again meanwhile") from None

    def _begun(self, now: int, generation: int, fresh: bool) -> Begun:
        if self._clock is not None:
            return Begun(self._clock.now(), self._clock.steady(), generation, fresh, self._clock.elapsed())
        return Begun(now, now, generation, fresh)

    def _together(self, asked: list[Asked]) -> list[list[Row]]:
        """Run several statements in one round trip; the first of them may begin a transaction."""
        try:
            self._busy_since = time.monotonic()
            self._is_alone = False
            later, self._later = self._later, []
            return self._ready_line().ask_all([*later, *asked])[len(later) :]
        except psycopg.Error as error:
            raise_as_ours(error, self._where)
        finally:
            self._busy_since = 0.0

    def _execute(self, text: str, params: dict[str, Any] | None) -> list[Row]:
        line = self._line
        if line is None:
            raise StoreUnavailable(f"{self._where}: the connection was lost")
        if self._later:
            return self._together([(text, params)])[0]
        if self._is_alone:
            begin: list[Asked] = [("BEGIN READ ONLY", None), (f"SELECT {_OWN_PATH}", {})]
            return self._together([*begin, (text, params), ("COMMIT", None)])[2]
        try:
            self._busy_since = time.monotonic()
            return line.ask(text, params)
        except psycopg.Error as error:
            raise_as_ours(error, self._where)
        finally:
            self._busy_since = 0.0

    def _copy(self, text: str, lines: bytes) -> None:
        conn = self._conn
        if conn is None:
            raise StoreUnavailable(f"{self._where}: the connection was lost")
        if self._later:
            self._together([])
        try:
            self._busy_since = time.monotonic()
            with conn.cursor() as cursor, cursor.copy(text) as copy:
                copy.write(lines)
        except psycopg.Error as error:
            raise_as_ours(error, self._where)
        finally:
            self._busy_since = 0.0

    def _ready_line(self) -> PostgresLine:
        conn = self.connection
        if self._line is None:
            self._line = Wire(conn)
        return self._line

    def _drop(self) -> None:
        if self._conn is not None:
            with quietly(psycopg.Error):
                self._conn.close()
        self._conn = self._line = None
        self._later.clear()


_IDLE = "'idle_in_transaction_session_timeout'"

#: Functions, operators and types are looked up in these schemas only, whatever the search path of the role is: an object that
#: somebody put into another schema under the same name must not run in their place. Our tables are named with their schema.
#: Statements that run before this setting name the schema of each function.
_PATH = "pg_catalog.current_setting('search_path')"
_OWN_PATH = "pg_catalog.set_config('search_path', 'pg_catalog, pg_temp', true)"

#: Our statements are written for their indexes. Statistics taken at a bad moment must not change their plans.
_PLANNER = (
    "enable_seqscan",
    "enable_bitmapscan",
    "enable_sort",
    "enable_hashjoin",
    "enable_mergejoin",
    "enable_material",
)
#: Before version 18 a plan that is switched off has an enormous cost. The server would then compile each statement (JIT),
#: which takes longer than running it, and start parallel workers.
_COSTLY = {"jit": "off", "max_parallel_workers_per_gather": "0"}
_PINNED = ", ".join(
    f"pg_catalog.set_config('{name}', '{value}', true)"
    for name, value in {**dict.fromkeys(_PLANNER[:-1], "off"), **_COSTLY}.items()
)
#: Reads look up the rows of a page one by one; a table that was believed to be small must not be read whole for that. And the
#: parameters decide which plan is best, so each query is planned again.
_PINNED_READS = (
    f"{_PINNED}, pg_catalog.set_config('enable_material', 'off', true), "
    "pg_catalog.set_config('plan_cache_mode', 'force_custom_plan', true)"
)


def _reset(names: Sequence[str]) -> str:
    """The statement that resets these settings to the values chosen by the owner of the database."""
    listed = ", ".join(f"'{name}'" for name in names)
    return f"SELECT set_config(name, reset_val, true) FROM pg_settings WHERE name IN ({listed})"
