"""The connection of a store, opened when it is first needed, and what is kept with it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from holdfast.errors import StoreConflict
from holdfast.store.driver import Driver, Limits
from holdfast.store.sqlalchemy_connection import Enlisted
from holdfast.store.statements import Statement, Statements


class StoreConnection:
    """One connection, reopened if it was lost, with its statements and what the engine caches."""

    def __init__(self, connect: Callable[[Limits], Driver], where: str, limits: Limits, writer: int) -> None:
        self.where = where
        self.writer = writer
        #: For the engine: what it has read and may keep as long as the generation stands.
        self.cache: dict[str, Any] = {}
        self._connect = connect
        self.limits = limits
        self._driver: Driver | None = None
        self._seq = 0
        self._enlisted: Enlisted | None = None
        #: User code has joined a transaction before, and may do so again.
        self._lets_in = False
        self.statements: dict[str, Statement] = {}
        #: Called after every commit, for metrics: what it was for, how many rows it was about, how long it took, and the
        #: transaction, unless it was a single statement. Must not fail.
        self.on_commit: Callable[[str, int, float, Any], None] | None = None

    @property
    def driver(self) -> Driver:
        assert self._driver is not None
        return self._driver

    def connect(self) -> Driver:
        """The connection, reopened if it was lost."""
        if self._driver is None:
            self._driver = self._connect(self.limits)
            self.statements = Statements.of(self._driver.dialect)
        return self._driver

    def prepare(self) -> None:
        """Before a transaction begins: load and build what user code needs to join it, if any ever did."""
        if self._lets_in:
            self.driver.ready()
            raw = self.driver.connection
            if self._enlisted is None or self._enlisted.raw is not raw:
                self._enlisted = Enlisted(raw, self.driver.dialect.name)

    def enlisted(self) -> Enlisted:
        """The connection as user code inside a transaction gets it.

        The first time on each connection it is not there: loading SQLAlchemy takes a second or more, in which nobody else
        could write. So the transaction is given up, `prepare` loads it, and the transaction is run again.
        """
        self._lets_in = True
        if self._enlisted is None or self._enlisted.raw is not self.driver.connection:
            raise StoreConflict(f"{self.where}: begun before SQLAlchemy was loaded; it is begun again")
        return self._enlisted

    def next_seq(self) -> int:
        self._seq += 1
        return self._seq

    def close(self) -> None:
        if self._driver is not None:
            self._driver.close()
            self._driver = None
