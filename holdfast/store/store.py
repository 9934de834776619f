"""The store: what the engine may ask of a database, in transactions. One connection, for one thread at a time."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count
from typing import Any, TypeVar

from holdfast import schema
from holdfast.errors import QuestionTimeout, StoreBroken, StoreConflict, StoreError, StoreUnavailable, UsageError
from holdfast.store import upgrading
from holdfast.store.async_connection import is_async
from holdfast.store.commit_once import AtOnce, Write
from holdfast.store.connection import StoreConnection
from holdfast.store.driver import Begun, Driver, Limits, Lock, NewsListener
from holdfast.store.kind import StoreKind
from holdfast.store.transaction import Transaction

T = TypeVar("T")

#: How long a call waits for a database that is unavailable.
PATIENCE_SECONDS = 30.0
#: How often a call that loses races is repeated, even without time left.
RACES = 4


_NO_TIME = Begun(0, 0, -1, True)


def new_identity() -> int:
    """A random number that nobody else has, for workers and writers. Never zero."""
    return secrets.randbits(62) + 1


class Store(StoreConnection):
    """A database with holdfast's tables."""

    def __init__(
        self,
        kind: StoreKind,
        connect: Callable[[Limits], Driver],
        where: str,
        limits: Limits | None = None,
        *,
        connect_to_read: Callable[[Limits], Driver] | None = None,
    ) -> None:
        super().__init__(connect, where, limits or Limits(), new_identity())
        self.kind = kind
        self._connect_to_read = connect_to_read or connect
        #: Of a store that only reads: reads are given up after this time of the monotonic clock.
        self.give_up_at: float | None = None

    def another(self, limits: Limits | None = None) -> Store:
        """A second connection to the same database, with limits of its own."""
        another = Store(self.kind, self._connect, self.where, limits, connect_to_read=self._connect_to_read)
        another.on_commit, another.give_up_at = self.on_commit, self.give_up_at
        return another

    def reader(self) -> Store:
        """A connection to the same database that only reads, and needs no right to write."""
        return Store(self.kind, self._connect_to_read, self.where)

    def writing(
        self,
        work: Callable[[Transaction], T],
        *,
        slot: int = 0,
        exclusive: bool = False,
        at_once: AtOnce[T] | None = None,
    ) -> Write[T]:
        """A write, to be run until it is committed. `slot` says whose counts it adds to."""
        return Write(self, work, slot or new_identity(), exclusive, at_once, self.read)

    def write(
        self,
        work: Callable[[Transaction], T],
        *,
        slot: int = 0,
        exclusive: bool = False,
        patience_seconds: float = PATIENCE_SECONDS,
        at_once: AtOnce[T] | None = None,
    ) -> T:
        """Commit the work, waiting a while for a database that is busy or unavailable."""
        write = self.writing(work, slot=slot, exclusive=exclusive, at_once=at_once)
        return self._patiently(write.run, patience_seconds)

    def read(self, work: Callable[[Transaction], T], *, patience_seconds: float = PATIENCE_SECONDS) -> T:
        """Run the work on one consistent snapshot of the database."""

        def ask(driver: Driver, begun: Begun) -> T:
            return work(Transaction(self, begun, 0, is_snapshot=True, give_up_at=self.give_up_at))

        return self._view(ask, patience_seconds)

    def _view(self, ask: Callable[[Driver, Begun], T], patience_seconds: float = 0.0) -> T:
        def once() -> T:
            driver = self.connect()
            try:
                answer = ask(driver, driver.begin_read(self._seconds_left()))
            except Exception:
                driver.check_read()  # an error from an inconsistent view does not count
                raise
            else:
                driver.check_read()
                return answer
            finally:
                driver.rollback()

        try:
            return self._patiently(once, patience_seconds)
        except StoreError as error:
            if self.give_up_at is not None and time.monotonic() >= self.give_up_at:
                raise QuestionTimeout(f"{self.where} did not answer in the time that was given") from error
            raise

    def _seconds_left(self) -> float | None:
        if self.give_up_at is None:
            return None
        if (left := self.give_up_at - time.monotonic()) <= 0:
            raise QuestionTimeout(f"{self.where} did not answer in the time that was given")
        return left

    def glance(self, work: Callable[[Transaction], T], *, patience_seconds: float = PATIENCE_SECONDS) -> T:
        """Run work that reads with one statement: it needs no transaction and no time."""

        def once() -> T:
            driver = self.connect()
            driver.ready()
            try:
                return work(Transaction(self, _NO_TIME, 0))
            except BaseException:
                driver.rollback()
                raise

        return self._patiently(once, patience_seconds)

    def guest(self, connection: Any) -> Store:
        """This store on a connection of the caller's to the same database: a SQLAlchemy Connection or Session, Django's
        connection, or a raw one."""
        if is_async(connection):
            raise UsageError("the connection is async: add with `await pipeline.add_async(…)`, or with holdfast.aio")
        driver = self.connect().over(_raw(connection))
        guest = Store(self.kind, lambda _: driver, self.where)
        guest._driver, guest.statements = driver, self.statements
        return guest

    @contextmanager
    def within(self) -> Iterator[Transaction]:
        """Of a guest: run our statements inside the caller's transaction."""
        tx = Transaction(self, self.driver.begin_within(), new_identity())
        yield tx
        tx.flush()
        self.driver.end_within()

    def lock(self, name: str) -> Lock | None:
        """Take the lock of this name, without waiting; None if another process has it. It lasts until it is closed, or this
        process ends."""
        store = self.another()
        taken: Lock | None = None
        try:
            taken = store.connect().lock(name)
            return taken
        finally:
            if taken is not store._driver:
                store.close()

    def listener(self) -> NewsListener:
        return self.connect().listener()

    def facts(self) -> dict[str, Any]:
        return self._view(lambda driver, _: driver.facts())

    def cannot_write(self) -> str | None:
        return self._view(lambda driver, _: driver.cannot_write())

    def integrity(self) -> str:
        return self._view(lambda driver, _: driver.integrity())

    def _patiently(self, once: Callable[[], T], patience_seconds: float) -> T:
        give_up_at = time.monotonic() + patience_seconds
        pause = 0.01
        for tries in count(1):
            try:
                return once()
            except (StoreUnavailable, StoreConflict) as error:
                lost_a_race = isinstance(error, StoreConflict) and tries < RACES
                if time.monotonic() + pause > give_up_at and not lost_a_race:
                    raise
            time.sleep(pause)
            pause = min(pause * 2, 1.0)
        raise AssertionError("unreachable")

    # Schema -------------------------------------------------------------------------------------------------------

    def schema_version(self) -> int:
        """The schema version of the tables; 0 if there are none."""
        return self._view(lambda driver, _: upgrading.version_of(driver))

    def upgrade(self) -> list[str]:
        """Bring the tables up to date, exclusively; return the migrations that were run. Indexes that take long are built
        afterwards, beside the work of others; if that is interrupted, the next upgrade does it."""
        driver = self.connect()
        done = upgrading.migrate(driver, self.where)
        for index in driver.unbuilt(schema.later_indexes()):
            driver.build(index)
        return done

    def missing_indexes(self) -> list[str]:
        """Indexes that an interrupted upgrade has not built."""
        return [index.name for index in self.connect().unbuilt(schema.later_indexes())]

    def require_schema(self) -> None:
        """Refuse tables that are missing, or older or newer than this code."""
        version = self.schema_version()
        if version > schema.newest():
            raise StoreBroken(upgrading.too_new(self.where, version))
        if version == 0:
            raise StoreBroken(f"{self.where} has no holdfast tables yet: add items to it, or run `holdfast db upgrade`")
        if version < schema.newest():
            raise StoreBroken(
                f"{self.where} has schema {version}, this holdfast needs {schema.newest()}: run `holdfast db upgrade`"
            )
        if hidden := self._view(lambda driver, _: driver.hides()):
            raise StoreBroken(f"{self.where}: {hidden}: give it the right to see all of them (a policy, or BYPASSRLS)")


def _raw(connection: Any) -> Any:
    """The driver's connection below the caller's object."""
    if hasattr(connection, "driver_connection"):
        return connection.driver_connection
    if hasattr(connection, "ensure_connection"):  # Django's
        connection.ensure_connection()
        return connection.connection
    if hasattr(connection, "connection") and not hasattr(connection, "cursor"):
        if callable(connection.connection):  # a Session
            return _raw(connection.connection())
        if not connection.in_transaction():
            # It has seen no statement yet, and would not commit what it does not know of.
            connection.begin()
        return _raw(connection.connection)
    return connection
