"""PostgreSQL: one database, any number of machines.

Nothing lives in a session: every transaction says all it needs when it begins (its isolation, its time limit, its
marker, a shared lock against registrations) in one round trip, so that a pooler in between changes nothing.
"""

from __future__ import annotations

import logging
import os
import re
import socket
import time
from collections.abc import Sequence
from typing import Any, NoReturn

from holdfast.clock import Clock
from holdfast.errors import StoreBroken, StoreConflict, StoreError, StoreUnavailable, UsageError
from holdfast.store.driver import Begun, Forkable, Limits, Row, quietly
from holdfast.store.postgres_address import UNREADABLE, channel, lock_key, read_url
from holdfast.store.postgres_dialect import PostgresDialect
from holdfast.store.statements import Statement
from holdfast.store.store import Store
from holdfast.store.watch import watch

try:
    import psycopg
    from psycopg import sql
except ImportError:
    raise UsageError("PostgreSQL needs one more package: pip install 'holdfast[postgres]'") from None

log = logging.getLogger("holdfast.store")


#: Refusals at the door come without a code; these do not pass by themselves.
_WRONG_FOR_GOOD = re.compile(
    'database ".*" does not exist|role ".*" does not exist|authentication failed|no password supplied|'
    "unrecognized configuration parameter|invalid value for parameter|no pg_hba.conf entry"
)

OLDEST_SERVER = 140000

#: So many rows travel faster by COPY, which takes one more round trip.
COPY_FROM = 16

#: What user code cannot have brought about by a statement alone: a lost race, a full disk, a server that goes away.
_TROUBLE = ("40001", "40P01", "53100", "53300", "57P")

_CONNECT = {
    "connect_timeout": 5,
    "keepalives": 1,
    "keepalives_idle": 5,
    "keepalives_interval": 2,
    "keepalives_count": 3,
    "tcp_user_timeout": 5000,
    "application_name": "holdfast",
    "client_encoding": "utf8",
}



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
        self._conn: psycopg.Connection[Row] | None = None
        self._cursor: psycopg.Cursor[Row] | None = None
        self._prepare = True
        #: Whether it speaks over a connection of the caller's, who commits.
        self._is_guest = False
        #: Whether there is something to tell when this transaction commits.
        self._news = False
        watch(self)

    @classmethod
    def store(cls, url: str, *, clock: Clock | None) -> Store:
        conninfo, schema, where = read_url(url)
        dialect = PostgresDialect(schema)
        return Store(lambda limits: cls(conninfo, dialect, where, clock, limits), where)

    # Transactions -------------------------------------------------------------------------------------------------

    def begin(self, writer: int, seq: int, *, exclusive: bool) -> Begun:
        # Each statement sees what was committed before it: the generation is read after the lock is had.
        lock = "pg_advisory_xact_lock" if exclusive else "pg_advisory_xact_lock_shared"
        commits = f"{self.dialect.schema}.commits"
        at = _NOW if self._clock is None else str(self._clock.now())
        answers = self._many(
            f"{self._begin_text(_PINNED, f'{lock}({self._lock_key})')}; "
            f"WITH mark AS (INSERT INTO {commits} AS c (writer, seq, at) VALUES ({writer:d}, {seq:d}, {at}) "
            f"ON CONFLICT (writer) DO UPDATE SET seq = excluded.seq, at = excluded.at WHERE c.seq < excluded.seq "
            f"RETURNING seq) SELECT {_NOW}, {self._generation}, EXISTS (SELECT 1 FROM mark)"
        )
        [(now, generation, fresh)] = answers[-1]
        return self._begun(now, generation, fresh)

    def ready(self) -> None:
        self._ready_cursor()

    def begin_read(self) -> Begun:
        [(now, *_)] = self._many(f"BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY; SELECT {_NOW}, {_PINNED_READS}")[-1]
        return self._begun(now, -1, True)

    @property
    def _generation(self) -> str:
        return f"(SELECT COALESCE(SUM(generation), 0)::bigint FROM {self.dialect.schema}.pipelines)"

    def over(self, raw: Any) -> Postgres:
        if not isinstance(raw, psycopg.Connection):
            raise UsageError(f"a psycopg connection to {self._where} is needed, not a {type(raw).__name__}")
        if raw.autocommit and raw.info.transaction_status is psycopg.pq.TransactionStatus.IDLE:
            raise UsageError(
                f"the connection to {self._where} commits each statement by itself: begin a transaction first"
            )
        guest = Postgres(self._conninfo, self.dialect, self._where, self._clock, Limits())
        guest._is_guest = True
        guest._conn, guest._cursor = raw, raw.cursor(row_factory=psycopg.rows.tuple_row)
        if guest._place() != self._place():
            raise UsageError(f"the connection is to another database ({raw.info.dbname}), the store is {self._where}")
        return guest

    def _place(self) -> tuple[Any, ...]:
        """What tells this store from every other, in whatever database: where its tables are, and since when."""
        schema = self.dialect.schema
        table = sql.Literal(f"{schema}.schema_version").as_string(None)
        [found] = self.run_text(f"SELECT current_database(), to_regclass({table})::oid::bigint")
        since = self.run_text(f"SELECT MIN(migrated_at) FROM {schema}.schema_version") if found[1] is not None else []
        return (*found, *since)

    def begin_within(self) -> Begun:
        lock = f"SELECT pg_advisory_xact_lock_shared({self._lock_key})"
        self._execute(lock, None)
        [(now, generation)] = self._execute(f"SELECT {_NOW}, {self._generation}", None)
        return self._begun(now, generation, True)

    def begin_bare(self) -> int:
        # The schema itself is not made here if it exists: a role may use it without the right to create one.
        named = sql.Literal(self.dialect.schema_name).as_string(None)
        answers = self._many(
            f"{self._begin_text(f'pg_advisory_xact_lock({self._lock_key})')}; "
            f"SELECT 1 FROM pg_namespace WHERE nspname = {named}; SELECT {_NOW}"
        )
        if not answers[-2]:
            self.run_text(f"CREATE SCHEMA IF NOT EXISTS {self.dialect.schema}")
        return self._begun(answers[-1][0][0], 0, True).now

    def run(self, statement: Statement, params: dict[str, Any]) -> list[Row]:
        return self._execute(statement.text, params)

    def run_rows(self, statement: Statement, rows: Sequence[Sequence[Any]], params: dict[str, Any]) -> list[Row]:
        if len(rows) >= COPY_FROM and (text := self.dialect.copy_text(statement)) is not None:
            lines = self.dialect.pack_copy(rows)
            if lines is not None:
                self._copy(text, lines)
                return []
        params["rows"] = self.dialect.pack_rows(statement.columns, rows)
        return self._execute(statement.text, params)

    def run_text(self, text: str) -> list[Row]:
        self._ready_cursor()
        return self._execute(text, None)

    def columns(self) -> list[str]:
        assert self._cursor is not None and self._cursor.description is not None
        return [column.name for column in self._cursor.description]

    def commit(self) -> None:
        if self._news:
            # Last of all: it queues behind every other commit that notifies.
            self._many(f"NOTIFY {channel(self.dialect.schema)}; COMMIT")
            self._news = False
        else:
            self._execute("COMMIT", None)

    def before_user_code(self) -> None:
        self._execute(f"SELECT {_UNPINNED}", None)

    def after_user_code(self) -> None:
        self._execute(f"SELECT {_PINNED}", None)

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
        if not isinstance(raw, psycopg.Error) or not (raw.sqlstate or "").startswith(_TROUBLE):
            return None
        try:
            self._raise(raw)
        except StoreError as trouble:
            return trouble
        except psycopg.Error:
            return None

    @property
    def _status(self) -> psycopg.pq.TransactionStatus:
        return self._conn.info.transaction_status if self._conn else psycopg.pq.TransactionStatus.UNKNOWN

    def rollback(self) -> None:
        self._news = False
        if self._conn is None or self.pid != os.getpid():
            return
        if self._conn.closed or self._conn.info.transaction_status not in (
            psycopg.pq.TransactionStatus.INTRANS,
            psycopg.pq.TransactionStatus.INERROR,
            psycopg.pq.TransactionStatus.IDLE,
        ):
            self._drop()
        elif self._conn.info.transaction_status != psycopg.pq.TransactionStatus.IDLE:
            try:
                self._busy_since = time.monotonic()
                self._conn.execute("ROLLBACK")
            except psycopg.Error:
                self._drop()
            finally:
                self._busy_since = 0.0

    @property
    def connection(self) -> psycopg.Connection[Row]:
        if self.pid != os.getpid():
            raise StoreError("a forked process must open a store of its own")
        if self._conn is None or self._conn.closed:
            self._conn = self._connect()
            self._cursor = None
        return self._conn

    def notify(self) -> None:
        if self._is_guest:
            self._execute(f"NOTIFY {channel(self.dialect.schema)}", None)
        else:
            self._news = True

    def listener(self) -> _Notifications:
        return _Notifications(self)

    def close(self) -> None:
        if self.pid == os.getpid():
            self._drop()

    def descriptors(self) -> list[int]:
        if self._conn is None or self._conn.closed:
            return []
        return [self._conn.fileno()]

    def integrity(self) -> str:
        # The server checks its pages itself, if it was set up with checksums.
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
        oldest = self.run_text(
            "SELECT COALESCE(EXTRACT(epoch FROM now() - MIN(xact_start)), 0)::float8 FROM pg_stat_activity "
            "WHERE xact_start IS NOT NULL AND pid <> pg_backend_pid() AND datname = current_database()"
        )[0][0]
        return {
            "database": "postgresql",
            "where": self._where,
            "schema": self.dialect.schema,
            "driver": psycopg.__version__,
            **settings,
            "oldest_transaction_seconds": round(oldest, 1),
        }

    def look(self, now: float) -> None:
        since = self._busy_since
        if self._limits.answer_seconds and since and now - since > self._limits.answer_seconds:
            self._busy_since = 0.0
            log.warning("%s has not answered for %.0f s: giving up this connection", self._where, now - since)
            with quietly(OSError, psycopg.Error):
                conn = self._conn
                if conn is not None:
                    with socket.socket(fileno=os.dup(conn.fileno())) as line:
                        line.shutdown(socket.SHUT_RDWR)

    # The parts ----------------------------------------------------------------------------------------------------

    def _begin_text(self, *more: str) -> str:
        """Begin, and see to these expressions."""
        idle = f"set_config('idle_in_transaction_session_timeout', '{round(self._limits.idle_seconds * 1000)}', true)"
        return f"BEGIN ISOLATION LEVEL READ COMMITTED; SELECT {', '.join([idle, *more])}"

    def _begun(self, now: int, generation: int, fresh: bool) -> Begun:
        if self._clock is not None:
            return Begun(self._clock.now(), self._clock.steady(), generation, fresh, self._clock.elapsed())
        return Begun(now, now, generation, fresh)

    def _many(self, text: str) -> list[list[Row]]:
        """Run several statements in one round trip and return the rows of those that have any."""
        try:
            self._busy_since = time.monotonic()
            cursor = self._ready_cursor()
            cursor.execute(text)
            answers = []
            while True:
                if cursor.description is not None:
                    answers.append(cursor.fetchall())
                if not cursor.nextset():
                    return answers
        except psycopg.Error as error:
            self._raise(error)
        finally:
            self._busy_since = 0.0

    def _execute(self, text: str, params: dict[str, Any] | None) -> list[Row]:
        cursor = self._cursor
        if cursor is None:
            raise StoreUnavailable(f"{self._where}: the connection was lost")
        try:
            self._busy_since = time.monotonic()
            cursor.execute(text, params, prepare=None if self._prepare else False)
            return cursor.fetchall() if cursor.description is not None else []
        except psycopg.Error as error:
            self._raise(error)
        finally:
            self._busy_since = 0.0

    def _copy(self, text: str, lines: bytes) -> None:
        cursor = self._cursor
        if cursor is None:
            raise StoreUnavailable(f"{self._where}: the connection was lost")
        try:
            self._busy_since = time.monotonic()
            with cursor.copy(text) as copy:
                copy.write(lines)
        except psycopg.Error as error:
            self._raise(error)
        finally:
            self._busy_since = 0.0

    def _ready_cursor(self) -> psycopg.Cursor[Row]:
        conn = self.connection
        if self._cursor is None:
            self._cursor = conn.cursor()
        return self._cursor

    def _connect(self) -> psycopg.Connection[Row]:
        try:
            conn = psycopg.connect(self._conninfo, autocommit=True, **_CONNECT)  # type: ignore[arg-type]
        except psycopg.ProgrammingError:
            raise UsageError(UNREADABLE) from None  # the driver's own words would show the password
        except psycopg.Error as error:
            if _WRONG_FOR_GOOD.search(str(error)):
                raise StoreBroken(f"{self._where}: {str(error).strip().splitlines()[-1]}") from error
            self._raise(error)
        if conn.info.server_version < OLDEST_SERVER:
            conn.close()
            raise StoreBroken(f"{self._where} is PostgreSQL {conn.info.server_version // 10000}; 14 or newer is needed")
        if not self._prepare:
            conn.prepare_threshold = None
        return conn

    def _drop(self) -> None:
        if self._conn is not None:
            with quietly(psycopg.Error):
                self._conn.close()
        self._conn = self._cursor = None

    def _raise(self, error: psycopg.Error) -> NoReturn:
        state = error.sqlstate
        said = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        text = f"{self._where}: {said}"
        if state in ("26000", "42P05"):
            # A pooler gave this session to somebody else: prepared statements are not ours to keep.
            self._prepare = False
            self._drop()
            raise StoreConflict(text) from error
        if state in ("40001", "40P01"):
            raise StoreConflict(text) from error
        if state in ("XX001", "XX002", "42501", "42P01", "3F000", "3D000") or (state or "").startswith("28"):
            raise StoreBroken(text) from error
        if self._passes(error, state):
            raise StoreUnavailable(text) from error
        raise error

    def _passes(self, error: psycopg.Error, state: str | None) -> bool:
        """Is this trouble of the server or the line, which waiting may end? A crash leaves no code at all."""
        if state is None:
            return isinstance(error, (psycopg.OperationalError, psycopg.InterfaceError))
        return state[:2] in ("08", "53", "57", "58", "55", "XX") or state in ("25006", "25P03", "25P02")


class _Notifications:
    """News by LISTEN, on the connection of whoever asks. If it is lost, there is no news until it is back."""

    def __init__(self, driver: Postgres) -> None:
        self._driver = driver
        self._listening_on: psycopg.Connection[Row] | None = None

    def wait(self, timeout_seconds: float) -> bool:
        try:
            conn = self._driver.connection
            if conn is not self._listening_on:
                self._driver.run_text(f"LISTEN {channel(self._driver.dialect.schema)}")
                self._listening_on = conn
                return True  # what was said while nobody listened is not known
            return any(True for _ in conn.notifies(timeout=timeout_seconds, stop_after=1))
        except psycopg.Error as error:
            self._listening_on = None
            self._driver._drop()
            raise StoreUnavailable(str(error).strip()) from error

    def close(self) -> None:
        self._listening_on = None


#: Our statements are written for their indexes. Statistics taken at a bad moment must not turn their plans.
_PLANNER = ("enable_seqscan", "enable_bitmapscan", "enable_sort", "enable_hashjoin", "enable_mergejoin")
_UNPINNED = (
    "set_config(name, reset_val, true) FROM pg_settings WHERE name IN ("
    + ", ".join(f"'{name}'" for name in (*_PLANNER, "enable_material"))
    + ")"
)
_PINNED = ", ".join(f"set_config('{name}', 'off', true)" for name in _PLANNER)
#: Reads look up what belongs to a page row by row; a table that was thought small is not to be read whole for that.
_PINNED_READS = f"{_PINNED}, set_config('enable_material', 'off', true)"

_NOW = "(EXTRACT(epoch FROM clock_timestamp()) * 1000000)::bigint"
