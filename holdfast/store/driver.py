"""What a database must be able to do for the store. Two modules do it: sqlite.py and postgres.py.

A driver is one connection and is used by one thread at a time. Its errors are holdfast's: StoreUnavailable for what
passes by itself, StoreConflict for a lost race, StoreBroken for the rest.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, ClassVar, NamedTuple, Protocol

from holdfast.errors import StoreError
from holdfast.store.statements import Dialect, Statement

Row = tuple[Any, ...]


class Begun(NamedTuple):
    """What is known once a transaction has begun."""

    now: int
    steady: int
    generation: int
    #: False if this writer's transaction of this number was committed before.
    fresh: bool
    #: The steady clock with the machine's sleep counted, where there is one: `now` against it shows that a clock was set.
    elapsed: int | None = None


class Mark(NamedTuple):
    """What a write leaves behind when it commits: whose, and the how-manieth."""

    writer: int
    seq: int


#: Leaves a mark, and answers with a row unless it was there.
MARKING = """INSERT INTO holdfast_commits AS c (writer, seq, at) VALUES (:writer, :seq, {clock})
ON CONFLICT (writer) DO UPDATE SET seq = excluded.seq, at = excluded.at WHERE c.seq < excluded.seq RETURNING seq"""


class Limits(NamedTuple):
    """How long a connection over a network may keep others waiting."""

    #: A call without an answer for so long is given up; 0 for never.
    answer_seconds: float = 0.0
    #: A transaction whose process says nothing for so long is ended by the database: the process is frozen or gone.
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
        """Begin a write that leaves this mark; `exclusive` keeps every other write out until it ends. One that is in doubt
        may have been committed before: it is not begun before that is known."""
        ...

    def ready(self) -> None:
        """Make sure that there is a connection. A statement that comes next, without a transaction, only reads."""
        ...

    def begin_read(self) -> Begun: ...

    def check_read(self) -> None:
        """Raise StoreConflict if what was read since `begin_read` may not be one consistent view of the database."""
        ...

    def over(self, raw: Any) -> Driver:
        """A driver that speaks over the caller's connection, and leaves its transaction to the caller."""
        ...

    def begin_within(self) -> Begun:
        """What is known inside a transaction that the caller has begun."""
        ...

    def end_within(self) -> None:
        """Leave that transaction as it was found."""
        ...

    def begin_bare(self) -> int:
        """Begin a write on a database that may have no tables yet, alone; return the time."""
        ...

    def run(self, statement: Statement, params: dict[str, Any]) -> list[Row]: ...

    def run_rows(self, statement: Statement, rows: Sequence[Sequence[Any]], params: dict[str, Any]) -> list[Row]:
        """Run a statement for all these rows; before the next statement, if it has no answer."""
        ...

    def run_text(self, text: str) -> list[Row]: ...

    def columns(self) -> list[str]:
        """The names of the columns of the rows last returned."""
        ...

    def commit(self) -> None: ...

    def before_whole_tables(self) -> None:
        """Called before whole tables are read: that is planned as the owner of the database set it up."""
        ...

    def before_user_code(self) -> None:
        """Called before user code runs in the transaction: it gets the database as its owner set it up."""
        ...

    def after_user_code(self) -> None:
        """And the rest of the transaction gets it as we did."""
        ...

    def check_user_code(self) -> None:
        """Raise UsageError if user code left the transaction so that it cannot go on."""
        ...

    @property
    def lost(self) -> bool:
        """Whether the connection is known to be gone."""
        ...

    def trouble(self, error: BaseException) -> StoreError | None:
        """The trouble of the database that user code ran into, if that is what this error is. What may be the fault of a
        statement counts as that: if the database is in trouble, our own next statement finds out."""
        ...

    def rollback(self) -> None:
        """End the transaction, whatever state the connection is in; never raises."""
        ...

    @property
    def connection(self) -> Any:
        """The raw driver connection, for a transaction that user code joins."""
        ...

    def close(self) -> None: ...

    def notify(self, stages: Collection[int]) -> None:
        """Let idle workers know, when this transaction commits, that there is something to claim: in these stages, if any
        are named."""
        ...

    def listener(self) -> Listener: ...

    def facts(self) -> dict[str, Any]:
        """What `doctor` says about this database."""
        ...

    def cannot_write(self) -> str | None:
        """Why nothing can be written now, as far as one who only looks can tell; None if nothing is known to be in the way."""
        ...

    def hides(self) -> str | None:
        """Which of our tables show only a part of their rows, and to whom; None if all is seen."""
        ...

    def integrity(self) -> str:
        """What is wrong with the file of the database, which is read as a whole; `ok` if nothing is."""
        ...


class FarDriver(Driver, Protocol):
    """A connection over a line."""

    def at_once(
        self, mark: Mark, statement: Statement, params: dict[str, Any], stages: Collection[int]
    ) -> tuple[list[Row], int]:
        """A whole write in one round trip, with news for these stages: the rows of its statement, and the time."""
        ...


class Listener(Protocol):
    """Tells that another process has committed something. A hint: polling stays the truth."""

    def wait(self, timeout_seconds: float) -> Collection[int] | None:
        """Wait for news, and return the stages in which something waits; none of them if that is not known. None without
        news."""
        ...

    def close(self) -> None: ...


class Forkable:
    """A connection must not be shared with a forked child: the child's copy is cut off, and refuses to work."""

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
        cls._guard = threading.Lock()  # whoever held the old one is not here
        null = os.open(os.devnull, os.O_RDWR)
        for one in list(cls._open):
            for descriptor in one.descriptors():
                # Not closed: the number could be given to another file while the connection object still knows it.
                os.dup2(null, descriptor, inheritable=False)
        os.close(null)


os.register_at_fork(after_in_child=Forkable.cut_off_child)


@contextmanager
def quietly(*errors: type[BaseException]) -> Iterator[None]:
    """For clean-up on a connection that may be dead already."""
    try:
        yield
    except errors:
        pass
