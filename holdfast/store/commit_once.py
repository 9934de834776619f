"""A write: a function of a transaction that may be run more than once, and is committed once.

Every write leaves its mark in `commits`, in the same transaction. If the reply to COMMIT is lost, the next try begins with the
mark: it finds the mark and is done, or waits for the earlier try that may still leave it.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Collection
from typing import Any, Generic, NamedTuple, TypeVar

from holdfast import points
from holdfast.errors import StoreConflict, UsageError
from holdfast.store.connection import StoreConnection
from holdfast.store.driver import Driver, FarDriver, Mark, Row
from holdfast.store.transaction import Transaction, user_code

T = TypeVar("T")

#: How often a transaction that lost a race inside the database is run before the error is raised.
CONFLICT_TRIES = 8


class AtOnce(NamedTuple, Generic[T]):
    """A write as one statement, in one round trip, for a database over a network. If it returns no row, because there is
    nothing to do or something is in the way, the write is done in steps, which find out why."""

    statement: str
    params: dict[str, Any]
    #: The stages in which something waits afterwards.
    stages: Collection[int]
    #: Its result, from its rows and the time; and the same if its answer was lost.
    take: Callable[[list[Row], int], T]
    find: Callable[[Transaction], T]
    #: The statement that does the same when the write is done in steps.
    like: str
    #: What it is for.
    op: str


class Write(Generic[T]):
    """A write in progress: call `run` until it returns. It remembers a commit whose reply was lost."""

    def __init__(
        self,
        store: StoreConnection,
        work: Callable[[Transaction], T],
        slot: int,
        exclusive: bool,
        at_once: AtOnce[T] | None,
        read: Callable[[Callable[[Transaction], T]], T],
    ) -> None:
        """`read` runs a function of a transaction that only reads."""
        self._store = store
        self._work = work
        self._read = read
        self._slot = slot
        self._exclusive = exclusive
        self._at_once = at_once
        self._mark = Mark(store.writer, store.next_seq())
        #: The results of tries that may or may not have been committed.
        self._in_doubt: list[Callable[[], T]] = []
        #: The last try in steps, and when it began.
        self._tried: tuple[Transaction, float] | None = None

    def run(self) -> T:
        """Commit the work, or raise. After StoreUnavailable, calling again still commits it exactly once."""
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
        if getattr(user_code, "here", False):
            raise UsageError(
                "inside an effect the store is written to through the effect's connection, or the two would wait for each "
                "other: use add(…, connection=connection), or ctx.submit in the handler"
            )
        driver = self._store.connect()
        at_once, self._at_once = self._at_once, None
        if at_once is not None and driver.far is not None:
            done = self._try_at_once(driver.far, at_once)
            if done:
                return done[0]
        return self._in_steps(driver)

    def _try_at_once(self, driver: FarDriver, quick: AtOnce[T]) -> list[T]:
        """Its result, or nothing if it could not be done."""
        statement = self._store.statements[quick.statement]
        began = time.perf_counter()
        points.reach(f"store.{quick.like}", (), quick.params)
        points.reach("commit.before")
        self._in_doubt.append(lambda: self._read(quick.find))
        try:
            params = driver.dialect.pack_lists(statement, {**quick.params})
            rows, now = driver.at_once(self._mark, statement, params, quick.stages)
            points.reach("commit.after")
            if rows:
                if self._store.on_commit is not None:
                    self._store.on_commit(quick.op, len(rows), time.perf_counter() - began, None)
                return [quick.take(rows, now)]
            self._in_doubt.clear()
            return []
        except BaseException:
            driver.rollback()
            raise

    def _in_steps(self, driver: Driver) -> T:
        began = time.perf_counter()
        try:
            self._store.prepare()
            begun = driver.begin(self._mark, exclusive=self._exclusive, in_doubt=bool(self._in_doubt))
            if not begun.fresh:
                # The commit whose reply was lost did happen.
                driver.rollback()
                self._tell_of_commit()
                return self._in_doubt[-1]()
            tx = Transaction(self._store, begun, self._slot)
            self._tried = tx, began
            result = self._work(tx)
            if tx.is_for_nothing and not self._in_doubt:
                # A write in doubt commits even so: without its mark, an earlier try could still be committed.
                driver.rollback()
                return result
            tx.flush()
        except BaseException:
            driver.rollback()
            raise
        self._in_doubt.append(lambda: result)
        points.reach("commit.before")
        try:
            driver.commit()
        except BaseException:
            driver.rollback()
            raise
        points.reach("commit.after")
        self._tell_of_commit()
        return result

    def _tell_of_commit(self) -> None:
        """The last try was committed."""
        if self._store.on_commit is not None and self._tried is not None:
            tx, began = self._tried
            self._store.on_commit(tx.op, tx.rows, time.perf_counter() - began, tx)
