"""Store and Transaction: all that the engine may ask of a database.

A store is one connection, for one thread at a time. A write is a function of a transaction: it may be run more than
once, and is committed once. If the reply to COMMIT is lost, the store finds out whether the commit took place before
it runs the function again: every write leaves its number in `commits`, in the same transaction.
"""

from __future__ import annotations

import random
import secrets
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Generic, TypeVar

import msgspec

from holdfast import points, schema
from holdfast.clock import Clock
from holdfast.errors import (
    EffectStalled,
    HoldfastError,
    StoreBroken,
    StoreConflict,
    StoreError,
    StoreUnavailable,
    UsageError,
)
from holdfast.model.states import State
from holdfast.store.driver import Begun, Driver, Limits, Listener, Row
from holdfast.store.enlist import engine_over, joined
from holdfast.store.statements import Statement

T = TypeVar("T")

#: `here` while user code runs inside a transaction, in the thread of that transaction.
_user_code = threading.local()

#: A transaction that lost a race inside the database is run again this often before the caller hears of it.
CONFLICT_TRIES = 8
#: How long a plain call waits for a database that is not there.
PATIENCE_SECONDS = 30.0


def new_identity() -> int:
    """A random number that nobody else has: for workers and writers. Never zero."""
    return secrets.randbits(62) + 1


class Transaction:
    """One transaction: statements by name, the time, and what is written along with them at the end."""

    def __init__(self, store: Store, begun: Begun, slot: int) -> None:
        self.now = begun.now
        self.steady = begun.steady
        self.elapsed = begun.elapsed
        self.generation = begun.generation
        self.slot = slot
        self.store = store
        self._driver = store.driver
        self._statements = store.statements
        self._counts: dict[tuple[int, str, int], list[int]] = {}
        self._events: list[tuple[Any, ...]] = []
        self._news = False
        self._let_in = False

    def run(self, statement_name: str, /, **params: Any) -> list[Row]:
        """Run a statement and return its rows."""
        statement = self._statements[statement_name]
        points.reach(f"store.{statement_name}")
        return self._driver.run(statement, self._pack(statement, params))

    def run_rows(self, statement_name: str, rows: Sequence[Sequence[Any]], /, **params: Any) -> list[Row]:
        """Run a statement once for all these rows; nothing at all for none."""
        if not rows:
            return []
        statement = self._statements[statement_name]
        points.reach(f"store.{statement_name}")
        packed = self._pack(statement, params)
        packed["rows"] = self._driver.dialect.pack_rows(statement.columns, rows)
        return self._driver.run(statement, packed)

    def records(self, statement_name: str, /, **params: Any) -> list[dict[str, Any]]:
        """Run a statement and return its rows by column name."""
        rows = self.run(statement_name, **params)
        columns = self._driver.columns()
        return [dict(zip(columns, row, strict=True)) for row in rows]

    def count(self, stage: int, state: State, n: int, *, bucket: int = -1, took_us: int = 0, most_us: int = 0) -> None:
        """Add to the counts, which are written with everything else."""
        entry = self._counts.get((stage, state, bucket))
        if entry is None:
            self._counts[stage, state, bucket] = [n, took_us, most_us]
        else:
            entry[0] += n
            entry[1] += took_us
            entry[2] = max(entry[2], most_us)

    def record(
        self,
        event: str,
        *,
        pipeline: int | None = None,
        item: int | None = None,
        stage: int | None = None,
        amount: int | None = None,
        resource: str | None = None,
        **data: Any,
    ) -> None:
        """Append an event, which is written with everything else. An amount is money, in millionths."""
        text = msgspec.json.encode(data).decode()
        self._events.append((self.now, event, pipeline, item, stage, amount, resource, text))

    def tell_idle_workers(self) -> None:
        """Once this commits, let workers know that there is something to claim."""
        self._news = True

    @contextmanager
    def savepoint(self) -> Iterator[Any]:
        """A SQLAlchemy Connection in this transaction, for user code. What was done with it is undone if the block raises,
        whatever it raises. Only trouble of the database itself is raised as ours."""
        driver = self._driver
        if not self._let_in:
            self._let_in = True
            driver.before_user_code()
        driver.run_text("SAVEPOINT holdfast_effect")
        began = time.monotonic()
        _user_code.here = True
        try:
            with joined(self.store.engine()) as connection:
                yield connection
                driver.check_user_code()
        except BaseException as error:
            trouble = driver.trouble(error)
            if trouble is not None:
                raise trouble from error
            took = time.monotonic() - began
            if driver.lost and took > self.store.limits.idle_seconds:
                raise EffectStalled(
                    f"an effect took {took:.1f} s and left the database waiting, which ended the transaction: "
                    f"do what is slow in the handler, and only write in the effect"
                ) from error
            driver.run_text("ROLLBACK TO SAVEPOINT holdfast_effect")
            driver.run_text("RELEASE SAVEPOINT holdfast_effect")
            if isinstance(error, StoreError):
                # Of another store, which user code has asked for something: no trouble of ours.
                raise HoldfastError(f"{type(error).__name__}: {error}") from error
            raise
        finally:
            _user_code.here = False
        driver.run_text("RELEASE SAVEPOINT holdfast_effect")

    def end_user_code(self) -> None:
        """No more user code in this transaction."""
        if self._let_in:
            self._let_in = False
            self._driver.after_user_code()

    @property
    def connection(self) -> Any:
        """The raw connection this transaction runs on."""
        return self._driver.connection

    def flush(self) -> None:
        """Write the counts and events gathered so far."""
        counts = [
            (self.slot, stage, state, bucket, *entry)
            for (stage, state, bucket), entry in sorted(self._counts.items())
            if any(entry)
        ]
        self.run_rows("add_counts", counts)
        self.run_rows("add_events", self._events)
        self._counts.clear()
        self._events.clear()
        if self._news:
            # Last of all: on PostgreSQL it queues behind every other commit that notifies.
            self._driver.notify()

    def _pack(self, statement: Statement, params: dict[str, Any]) -> dict[str, Any]:
        for name in statement.lists:
            params[name] = self._driver.dialect.pack_list(params[name])
        return params


class Write(Generic[T]):
    """A write under way: call `run` until it returns. It remembers a commit whose reply was lost."""

    def __init__(self, store: Store, work: Callable[[Transaction], T], slot: int, exclusive: bool) -> None:
        self._store = store
        self._work = work
        self._slot = slot
        self._exclusive = exclusive
        self._seq = store.next_seq()
        self._in_doubt: list[T] = []

    def run(self) -> T:
        """Commit the work, or raise: StoreUnavailable means that calling again may still commit it, once."""
        rng = random.Random()
        for again in range(CONFLICT_TRIES):
            try:
                return self._once()
            except StoreConflict:
                if again == CONFLICT_TRIES - 1:
                    raise
                time.sleep(rng.uniform(0, 0.005 * 2**again))
        raise AssertionError("unreachable")

    def _once(self) -> T:
        if getattr(_user_code, "here", False):
            raise UsageError(
                "inside an effect the store is written to through the effect's connection, or the two would wait for each "
                "other: use add_within(connection, …), or ctx.submit in the handler"
            )
        driver = self._store.connect()
        try:
            begun = driver.begin(self._store.writer, self._seq, exclusive=self._exclusive)
            if not begun.fresh:
                # The commit whose reply was lost took place after all.
                driver.rollback()
                return self._in_doubt[-1]
            tx = Transaction(self._store, begun, self._slot)
            result = self._work(tx)
            tx.flush()
        except BaseException:
            driver.rollback()
            raise
        self._in_doubt.append(result)
        points.reach("commit.before")
        try:
            driver.commit()
        except BaseException:
            driver.rollback()
            raise
        points.reach("commit.after")
        return result


class Store:
    """A database with holdfast's tables, through one connection that is opened when it is first needed."""

    def __init__(self, connect: Callable[[Limits], Driver], where: str, limits: Limits | None = None) -> None:
        self.where = where
        self.writer = new_identity()
        #: Free for the engine: what it has read and may keep as long as the generation stands.
        self.cache: dict[str, Any] = {}
        self._connect = connect
        self.limits = limits or Limits()
        self._driver: Driver | None = None
        self._seq = 0
        self._engine: tuple[Any, Any] | None = None
        self.statements: dict[str, Statement] = {}

    @property
    def driver(self) -> Driver:
        assert self._driver is not None
        return self._driver

    def connect(self) -> Driver:
        """The connection, made anew if it was lost."""
        if self._driver is None:
            self._driver = self._connect(self.limits)
            self.statements = self._driver.dialect.statements()
        return self._driver

    def engine(self) -> Any:
        """A SQLAlchemy engine over this store's connection, for user code inside a transaction."""
        raw = self.driver.connection
        if self._engine is None or self._engine[0] is not raw:
            self._engine = (raw, engine_over(raw, self.driver.dialect.name))
        return self._engine[1]

    def another(self, limits: Limits | None = None) -> Store:
        """A second connection to the same database, with limits of its own."""
        return Store(self._connect, self.where, limits)

    def next_seq(self) -> int:
        self._seq += 1
        return self._seq

    def writing(self, work: Callable[[Transaction], T], *, slot: int = 0, exclusive: bool = False) -> Write[T]:
        """A write to be run until it is committed; `slot` says whose counts it adds to."""
        return Write(self, work, slot or new_identity(), exclusive)

    def write(
        self,
        work: Callable[[Transaction], T],
        *,
        slot: int = 0,
        exclusive: bool = False,
        patience_seconds: float = PATIENCE_SECONDS,
    ) -> T:
        """Commit the work, waiting a while for a database that is busy or away."""
        write = self.writing(work, slot=slot, exclusive=exclusive)
        return self._patiently(write.run, patience_seconds)

    def read(self, work: Callable[[Transaction], T], *, patience_seconds: float = PATIENCE_SECONDS) -> T:
        """Run the work on one unchanging view of the database."""

        def once() -> T:
            driver = self.connect()
            try:
                return work(Transaction(self, driver.begin_read(), 0))
            finally:
                driver.rollback()

        return self._patiently(once, patience_seconds)

    @contextmanager
    def within(self, connection: Any) -> Iterator[Transaction]:
        """Statements of ours inside a transaction of the caller's: a SQLAlchemy Connection or Session, or a raw one."""
        driver = self.connect().over(_raw(connection))
        statements = self.statements
        guest = Store(lambda _: driver, self.where)
        guest._driver, guest.statements = driver, statements
        tx = Transaction(guest, driver.begin_within(), new_identity())
        yield tx
        tx.flush()

    def listener(self) -> Listener:
        return self.connect().listener()

    def facts(self) -> dict[str, Any]:
        return self.connect().facts()

    def close(self) -> None:
        if self._driver is not None:
            self._driver.close()
            self._driver = None

    def _patiently(self, once: Callable[[], T], patience_seconds: float) -> T:
        give_up_at = time.monotonic() + patience_seconds
        pause = 0.01
        while True:
            try:
                return once()
            except (StoreUnavailable, StoreConflict):
                if time.monotonic() + pause > give_up_at:
                    raise
            time.sleep(pause)
            pause = min(pause * 2, 1.0)

    # Schema -------------------------------------------------------------------------------------------------------

    def schema_version(self) -> int:
        """The version of the tables that are there; 0 for none."""
        driver = self.connect()
        try:
            driver.begin_read()
            return _version(driver)
        finally:
            driver.rollback()

    def upgrade(self) -> list[str]:
        """Bring the tables up to date, alone; return what was done."""
        driver = self.connect()
        done: list[str] = []
        try:
            now = driver.begin_bare()
            version = _version(driver)
            if version > schema.newest():
                raise StoreBroken(_too_new(self.where, version))
            for migration in schema.migrations():
                if migration.number > version:
                    self._migrate(driver, migration, now)
                    done.append(f"{migration.number:04d} {migration.name}")
            driver.commit()
        except BaseException:
            driver.rollback()
            raise
        return done

    def require_schema(self) -> None:
        """Refuse tables that are missing, older or newer than this code."""
        version = self.schema_version()
        if version > schema.newest():
            raise StoreBroken(_too_new(self.where, version))
        if version == 0:
            raise StoreBroken(f"{self.where} has no holdfast tables yet: add items to it, or run `holdfast db upgrade`")
        if version < schema.newest():
            raise StoreBroken(
                f"{self.where} has schema {version}, this holdfast needs {schema.newest()}: run `holdfast db upgrade`"
            )

    def _migrate(self, driver: Driver, migration: schema.Migration, now: int) -> None:
        for text in _split(migration.text):
            driver.run(driver.dialect.render("migration", text), {})
        record = driver.dialect.render(
            "record_migration",
            "INSERT INTO holdfast_schema_version (version, name, migrated_at) VALUES (:version, :name, :now)",
        )
        driver.run(record, {"version": migration.number, "name": migration.name, "now": now})


def open_store(url: str, *, create: bool = True, clock: Clock | None = None) -> Store:
    """Open the store that a URL names. `create` may make a new SQLite file; nothing else ever does."""
    if url.startswith("sqlite://"):
        from holdfast.store.sqlite import SQLite

        return SQLite.store(url, create=create, clock=clock)
    if url.startswith(("postgresql://", "postgres://")):
        from holdfast.store.postgres import Postgres

        return Postgres.store(url, clock=clock)
    # Nothing of the address is shown: it may hold a password where none belongs.
    raise UsageError(
        "the store's address is of no known kind: write sqlite:///path/to/file.db or postgresql://user@host/database"
    )


def _raw(connection: Any) -> Any:
    """The driver's own connection under whatever the caller has."""
    if hasattr(connection, "driver_connection"):
        return connection.driver_connection
    if hasattr(connection, "connection") and not hasattr(connection, "cursor"):
        # A Session has a method, a Connection an attribute of that name.
        inner = connection.connection() if callable(connection.connection) else connection.connection
        return _raw(inner)
    return connection


def _version(driver: Driver) -> int:
    exists = driver.run_text(driver.dialect.words["has_schema"])
    if not exists or not exists[0][0]:
        return 0
    statement = driver.dialect.render("version", "SELECT COALESCE(MAX(version), 0) FROM holdfast_schema_version")
    return int(driver.run(statement, {})[0][0])


def _split(text: str) -> Iterable[str]:
    lines = [line for line in text.splitlines() if not line.lstrip().startswith("--")]
    for part in "\n".join(lines).split(";\n"):
        if part.strip(";\n "):
            yield part.strip(";\n ")


def _too_new(where: str, version: int) -> str:
    return (
        f"{where} has schema {version}, this holdfast knows {schema.newest()}: it belongs to a newer holdfast; "
        f"upgrade this one with pip"
    )
