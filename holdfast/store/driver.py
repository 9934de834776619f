"""What the store needs from a database. Two modules provide it: sqlite.py and postgres.py.

A driver is one connection and is used by one thread at a time. It raises StoreUnavailable for a passing condition,
StoreConflict for a lost race, StoreBroken for the rest.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, ClassVar, NamedTuple, Protocol

from holdfast.errors import StoreError
from holdfast.schema import LaterIndex
from holdfast.store.statements import Dialect, Statement

Row = tuple[Any, ...]


class Begun(NamedTuple):
    """What is known once a transaction has begun."""

    now: int
    steady: int
    generation: int
    #: False if this writer has already committed the transaction of this number.
    fresh: bool
    #: The steady clock plus the sleep of the machine, if there is one. Compared with `now` it shows that a clock was set.
    elapsed: int | None = None


class Mark(NamedTuple):
    """What a write leaves in the database when it commits: the writer and its transaction number."""

    writer: int
    seq: int


#: Leaves a mark, and returns a row unless the mark existed.
MARKING = """INSERT INTO holdfast_commits AS c (writer, seq, at) VALUES (:writer, :seq, {clock})
ON CONFLICT (writer) DO UPDATE SET seq = excluded.seq, at = excluded.at WHERE c.seq < excluded.seq RETURNING seq"""


class Limits(NamedTuple):
    """How long a connection over a network may keep others waiting."""

    #: A call without an answer is given up after this; 0 for never.
    answer_seconds: float = 0.0
    #: The database ends a transaction that was idle for this long: its process is frozen or gone.
    idle_seconds: float = 20.0


class Driver(Protocol):
    """One connection."""

    #: Which steady clock judges leases here.
    clock_name: str

    @property
    def dialect(self) -> Dialect: ...

    @property
    def far(self) -> FarDriver | None:
        """This driver, if a round trip is worth saving."""
        ...

    def begin(self, mark: Mark, *, exclusive: bool, in_doubt: bool) -> Begun:
        """Begin a write that leaves this mark. `exclusive` keeps out every other write until it ends. A write in doubt may
        have been committed before, so it begins by finding out."""
        ...

    def ready(self) -> None:
        """Make sure that there is a connection. The next statement, outside a transaction, only reads."""
        ...

    def begin_read(self, within_seconds: float | None = None) -> Begun:
        """Begin a read. If a limit is given, a connection that only reads ends a statement in the database once so long has
        passed, by StoreUnavailable."""
        ...

    def check_read(self) -> None:
        """Raise StoreConflict if what was read since `begin_read` may not be one consistent view of the database."""
        ...

    def over(self, raw: Any) -> Driver:
        """A driver that uses the caller's connection, and leaves the transaction to the caller."""
        ...

    def begin_within(self) -> Begun:
        """Join a transaction that the caller has begun."""
        ...

    def end_within(self) -> None:
        """Restore the settings of that transaction."""
        ...

    def begin_bare(self, lock_seconds: float = 0.0) -> int:
        """Begin an exclusive write on a database that may have no tables yet; return the time. Where others may hold tables
        for long, StoreUnavailable is raised after so many seconds of waiting for one; 0 for no limit."""
        ...

    def run(self, statement: Statement, params: dict[str, Any]) -> list[Row]: ...

    def run_rows(self, statement: Statement, rows: Sequence[Sequence[Any]], params: dict[str, Any]) -> list[Row]:
        """Run a statement for all these rows. One without an answer may be sent with the next statement."""
        ...

    def run_text(self, text: str) -> list[Row]: ...

    def columns(self) -> list[str]:
        """The names of the columns of the rows last returned."""
        ...

    def commit(self) -> None: ...

    def before_whole_tables(self) -> None:
        """Called before whole tables are read: use the planner settings of the owner of the database."""
        ...

    def before_user_code(self) -> None:
        """Called before user code runs in the transaction: use the settings of the owner of the database."""
        ...

    def after_user_code(self) -> None:
        """Use our own settings again for the rest of the transaction."""
        ...

    def check_user_code(self) -> None:
        """Raise UsageError if user code left the transaction in a state in which it cannot go on."""
        ...

    @property
    def lost(self) -> bool:
        """Whether the connection is known to be gone."""
        ...

    def trouble(self, error: BaseException) -> StoreError | None:
        """The store error behind an error that user code got; None if its own statement may be to blame. If the database is
        in trouble after all, our next statement finds out."""
        ...

    def rollback(self) -> None:
        """End the transaction, whatever the state of the connection; never raises."""
        ...

    @property
    def connection(self) -> Any:
        """The raw driver connection, for a transaction that user code joins."""
        ...

    def close(self) -> None: ...

    def notify(self, stages: Collection[int]) -> None:
        """Once this transaction commits, notify idle workers that there is something to claim: in these stages, if any are
        named."""
        ...

    def listener(self) -> NewsListener: ...

    def facts(self) -> dict[str, Any]:
        """What `holdfast doctor` reports about this database."""
        ...

    def unbuilt(self, indexes: Sequence[LaterIndex]) -> list[LaterIndex]:
        """Those of these indexes that are not there, or unusable."""
        ...

    def build(self, index: LaterIndex) -> None:
        """Build an index, beside the work of others. There is no transaction."""
        ...

    def cannot_write(self) -> str | None:
        """Why nothing can be written now, found without writing; None if no reason is known."""
        ...

    def lock(self, name: str) -> Lock | None:
        """Take the lock of this name, without waiting; None if another process has it. The connection may be part of the lock,
        and is used for nothing else."""
        ...

    def hides(self) -> str | None:
        """Which of our tables hide some of their rows, and from whom; None if all rows are visible."""
        ...

    def integrity(self) -> str:
        """Read the whole database file and report damage; `ok` if there is none."""
        ...


class FarDriver(Driver, Protocol):
    """A connection over a network."""

    def at_once(
        self, mark: Mark, statement: Statement, params: dict[str, Any], stages: Collection[int]
    ) -> tuple[list[Row], int]:
        """A whole write in one round trip, with a notification for these stages: the rows of its statement, and the time."""
        ...


class Lock(Protocol):
    """What holds a lock, until it is closed or its process ends."""

    def close(self) -> None: ...


class NewsListener(Protocol):
    """Notices that another process has committed something. Only a hint: workers poll as well."""

    def wait(self, timeout_seconds: float) -> Collection[int] | None:
        """Wait for a notification, and return the stages in which something waits; empty if they are unknown, None on
        timeout."""
        ...

    def close(self) -> None: ...


class Forkable:
    """A connection that must not be shared with a forked child: the child's copy is cut off and refuses to work."""

    _open: ClassVar[weakref.WeakSet[Forkable]] = weakref.WeakSet()
    #: A set cannot be read while another thread adds to it.
    _guard: ClassVar[threading.Lock] = threading.Lock()

    def __init__(self) -> None:
        self.pid = os.getpid()
        self.closed = False
        with Forkable._guard:
            Forkable._open.add(self)

    @classmethod
    def inherited(cls) -> list[Forkable]:
        """Connections that were open when this process was forked."""
        with cls._guard:
            return [one for one in cls._open if one.pid != os.getpid() and not one.closed]

    def descriptors(self) -> list[int]:
        """The descriptors a child must not keep."""
        return []

    @classmethod
    def cut_off_child(cls) -> None:
        cls._guard = threading.Lock()  # its holder does not exist in this process
        null = os.open(os.devnull, os.O_RDWR)
        for one in list(cls._open):
            for descriptor in one.descriptors():
                # Not closed: the number could be given to another file while the connection object still uses it.
                os.dup2(null, descriptor, inheritable=False)
        os.close(null)


os.register_at_fork(after_in_child=Forkable.cut_off_child)


@contextmanager
def quietly(*errors: type[BaseException]) -> Iterator[None]:
    """Ignore these errors, for clean-up on a connection that may be dead."""
    try:
        yield
    except errors:
        pass
