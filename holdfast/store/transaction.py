"""A transaction: statements by name, the time, user code that joins it, and counts and events written at the end."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import msgspec

from holdfast import points
from holdfast.errors import EffectStalled, HoldfastError, QuestionTimeout, StoreError, StoreUnavailable
from holdfast.model.redact import redact_value
from holdfast.model.states import PASSED, State
from holdfast.store.connection import StoreConnection
from holdfast.store.driver import Begun, Row
from holdfast.store.statements import PLACES

#: `here` while user code runs inside a transaction, in the thread of that transaction.
user_code = threading.local()

#: Stands for all stages, which are numbered from 1.
_ANYWHERE = 0


class Transaction:
    """One transaction: statements by name, the time, and the counts and events written at its end."""

    def __init__(
        self,
        store: StoreConnection,
        begun: Begun,
        slot: int,
        *,
        is_snapshot: bool = False,
        give_up_at: float | None = None,
    ) -> None:
        self.now = begun.now
        self.steady = begun.steady
        self.elapsed = begun.elapsed
        self.generation = begun.generation
        #: For the engine, in a read of one snapshot: what it has read in it, which no commit can change. None elsewhere.
        self.snapshot: dict[str, Any] | None = {} if is_snapshot else None
        self._give_up_at = give_up_at
        self.slot = slot
        self.store = store
        self._driver = store.driver
        self._statements = store.statements
        self._counts: dict[tuple[int, str, int], list[int]] = {}
        self._versions: dict[tuple[int, str, str], int] = {}
        self._events: list[tuple[Any, ...]] = []
        self._news: set[int] = set()
        #: The attempts that this transaction ends: stage, outcome, attempts. To be counted once it is committed.
        self.ended: list[tuple[int, str, Sequence[Any]]] = []
        #: Calls of the ledger that it changes: as they were, and as they are now. To be counted in the same way.
        self.paid: list[tuple[Sequence[Any], Sequence[Any]]] = []
        #: What it is for, and how many rows it is about.
        self.op, self.rows = "", 0
        #: Nothing was written, so there is nothing to commit.
        self.is_for_nothing = False
        self._let_in = False

    def run(self, statement_name: str, /, **params: Any) -> list[Row]:
        """Run a statement and return its rows."""
        statement = self._statements[statement_name]
        # The database ends one that takes long; this ends many that are quick.
        if self._give_up_at is not None and time.monotonic() > self._give_up_at:
            raise QuestionTimeout(f"{self.store.where} did not answer in the time that was given")
        points.reach(f"store.{statement_name}", (), params)
        return self._driver.run(statement, self._driver.dialect.pack_lists(statement, params))

    def run_rows(self, statement_name: str, rows: Sequence[Sequence[Any]], /, **params: Any) -> list[Row]:
        """Run a statement for all these rows; without rows, do nothing."""
        if not rows:
            return []
        statement = self._statements[statement_name]
        points.reach(f"store.{statement_name}", rows, params)
        return self._driver.run_rows(statement, rows, self._driver.dialect.pack_lists(statement, params))

    def records(self, statement_name: str, /, **params: Any) -> list[dict[str, Any]]:
        """Run a statement and return its rows by column name."""
        rows = self.run(statement_name, **params)
        columns = self._driver.columns()
        return [dict(zip(columns, row, strict=True)) for row in rows]

    def places(self, statement_name: str, /, **params: Any) -> list[Row]:
        """Run a statement about stages of items, and return of its rows only item, stage and state."""
        return self.run(statement_name + PLACES, **params)

    def read_all(self) -> None:
        """From here on whole tables are read, with the planner settings of the owner of the database."""
        self._driver.before_whole_tables()

    def count(
        self,
        stage: int,
        state: State,
        n: int,
        *,
        version: str | None = None,
        type: str | None = None,
        bucket: int = -1,
        took_us: int = 0,
        most_us: int = 0,
    ) -> None:
        """Add to the counts, which are written at the end. Items that passed are also counted by version and
        type."""
        if state in PASSED:
            made_by = (stage, version or "", type or "")
            self._versions[made_by] = self._versions.get(made_by, 0) + n
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
        /,
        *,
        pipeline: int | None = None,
        item: int | None = None,
        stage: int | None = None,
        amount: int | None = None,
        resource: str | None = None,
        **data: Any,
    ) -> None:
        """Append an event, which is written at the end. An amount is money, in millionths."""
        text = msgspec.json.encode(redact_value(data)).decode()
        self._events.append((self.now, event, pipeline, item, stage, amount, resource, text))

    def tell_idle_workers(self, *stages: int) -> None:
        """Once this commits, notify workers that there is something to claim, in these stages if any are named."""
        self._news.update(stages or (_ANYWHERE,))

    @contextmanager
    def savepoint(self) -> Iterator[Any]:
        """A SQLAlchemy Connection in this transaction, for user code. Its changes are rolled back if the block raises. Errors
        of the database itself are raised as store errors, all others as they are."""
        driver = self._driver
        enlisted = self.store.enlisted()
        if not self._let_in:
            self._let_in = True
            driver.before_user_code()
        driver.run_text("SAVEPOINT holdfast_effect")
        user_code.here = True
        try:
            with enlisted.join() as connection:
                yield connection
                driver.check_user_code()
        except BaseException as error:
            trouble = driver.trouble(error)
            if trouble is not None:
                raise trouble from error
            if driver.lost:
                raise self._lost_under_user_code(enlisted.longest_pause, error) from error
            driver.run_text("ROLLBACK TO SAVEPOINT holdfast_effect")
            driver.run_text("RELEASE SAVEPOINT holdfast_effect")
            if isinstance(error, StoreError):
                # From another store that user code uses: not an error of this one.
                raise HoldfastError(f"{type(error).__name__}: {error}") from error
            raise
        finally:
            user_code.here = False
        driver.run_text("RELEASE SAVEPOINT holdfast_effect")

    def _lost_under_user_code(self, pause: float, error: BaseException) -> HoldfastError:
        """The error for a connection lost while user code ran. If user code kept the database waiting for too long, it is to
        blame. If the server or this process was stopped, nobody is, and the transaction is run again."""
        if pause > self.store.limits.idle_seconds:
            return EffectStalled(
                f"an effect left the database waiting for {pause:.1f} s, which ended the transaction: "
                f"do what is slow in the handler, and only write in the effect"
            )
        return StoreUnavailable(f"{self.store.where}: the connection was lost while an effect ran: {error}")

    def end_user_code(self) -> None:
        """No more user code runs in this transaction."""
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
        self.run_rows("add_versions", [(self.slot, *key, n) for key, n in sorted(self._versions.items()) if n])
        self.run_rows("add_events", self._events)
        self._counts.clear()
        self._versions.clear()
        self._events.clear()
        if self._news:
            self._driver.notify(() if _ANYWHERE in self._news else sorted(self._news))
