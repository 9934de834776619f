"""A write: a function of a transaction that may be run more than once, and is committed once.

Every write leaves its mark in `commits`, in the same transaction. If the reply to COMMIT is lost, the next try begins with
the mark: it finds it there and is done, or waits for whoever is still about to leave it.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Collection
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeVar

from holdfast import points
from holdfast.errors import StoreConflict, UsageError
from holdfast.store.driver import Driver, FarDriver, Mark, Row
from holdfast.store.transaction import Transaction, user_code

if TYPE_CHECKING:
    from holdfast.store.store import Store

T = TypeVar("T")

#: A transaction that lost a race inside the database is run again this often before the caller hears of it.
CONFLICT_TRIES = 8


class AtOnce(NamedTuple, Generic[T]):
    """A way to do a write by one statement, everything in one round trip, for a database that is some way off. If it does
    nothing and returns no row, for there is nothing to do or something in the way, the write is done in steps, which find
    out what."""

    statement: str
    params: dict[str, Any]
    #: Where something waits then.
    stages: Collection[int]
    #: What it came to, from its rows and the time; and the same when its answer was lost.
    take: Callable[[list[Row], int], T]
    find: Callable[[Transaction], T]
    #: The statement that does the same among the steps.
    like: str


class Write(Generic[T]):
    """A write under way: call `run` until it returns. It remembers a commit whose reply was lost."""

    def __init__(
        self, store: Store, work: Callable[[Transaction], T], slot: int, exclusive: bool, at_once: AtOnce[T] | None
    ) -> None:
        self._store = store
        self._work = work
        self._slot = slot
        self._exclusive = exclusive
        self._at_once = at_once
        self._mark = Mark(store.writer, store.next_seq())
        #: What came of the tries of which it is not known whether they took place.
        self._in_doubt: list[Callable[[], T]] = []

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
        """What it came to, if it could be done."""
        statement = self._store.statements[quick.statement]
        points.reach(f"store.{quick.like}", (), quick.params)
        points.reach("commit.before")
        self._in_doubt.append(lambda: self._store.read(quick.find))
        try:
            params = driver.dialect.pack_lists(statement, {**quick.params})
            rows, now = driver.at_once(self._mark, statement, params, quick.stages)
            points.reach("commit.after")
            if rows:
                return [quick.take(rows, now)]
            self._in_doubt.clear()
            return []
        except BaseException:
            driver.rollback()
            raise

    def _in_steps(self, driver: Driver) -> T:
        try:
            self._store.prepare()
            begun = driver.begin(self._mark, exclusive=self._exclusive, in_doubt=bool(self._in_doubt))
            if not begun.fresh:
                # The commit whose reply was lost took place after all.
                driver.rollback()
                return self._in_doubt[-1]()
            tx = Transaction(self._store, begun, self._slot)
            result = self._work(tx)
            if tx.is_for_nothing and not self._in_doubt:
                # One in doubt commits all the same: without its mark, what was given up could still take place.
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
        return result
