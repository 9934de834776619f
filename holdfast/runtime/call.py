"""A call of user code, as those who run calls see it: how long it may take, when it began, and who may say how it ended."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, TypeVar


class Call:
    """The methods that all calls share. A class of calls brings the fields: they are made by the thousand."""

    __slots__ = ()

    #: Calls of one kind take about as long as each other.
    kind: int
    #: On the process's own steady clock; 0 before it began.
    started: float
    #: Set on a call that took too long and was given up: the thread or the task that runs it must not take more work.
    abandoned: bool
    #: Whoever takes what is in it says how the call ended. Bytes, which the garbage collector need not look at.
    _end: bytearray

    def end(self) -> bool:
        """True for the first who says how this call ended: the handler, a timeout or a shutdown. The others are late."""
        try:
            self._end.pop()
        except IndexError:
            return False
        return True

    @property
    def is_over(self) -> bool:
        return not self._end

    @property
    def is_being_saved(self) -> bool:
        """Whether it is over, and its child process writes how it ended."""
        return False

    def close(self) -> None:
        """Nothing more may be done through what the handler was given, whoever still has it."""

    @property
    def label(self) -> str:
        """What it is called in messages."""
        raise NotImplementedError

    @property
    def timeout_seconds(self) -> float | None:
        raise NotImplementedError

    @property
    def goes_first(self) -> bool:
        """Whether it does not wait behind others: it holds what everybody shares."""
        return False

    @property
    def is_single(self) -> bool:
        """Whether it serves one item, and not a batch."""
        return True

    @property
    def size(self) -> float:
        """How many items it serves; infinitely many for one that must not be bundled with others."""
        return 1


C = TypeVar("C", bound=Call)
C_contra = TypeVar("C_contra", bound=Call, contravariant=True)
A = TypeVar("A")
A_co = TypeVar("A_co", covariant=True)

#: What a call came to goes here.
ReportEnd = Callable[[C, A], None]
#: Whether a call that waited may begin now.
MayStart = Callable[[C], bool]
#: Called when there is nothing left to run, with a way to learn whether the thread is free for something else; True if it is
#: worth looking again.
OutOfWork = Callable[[Callable[[], bool]], bool]


class Runner(Protocol[C_contra, A_co]):
    """Runs the handler of a call, and turns what it did into an answer."""

    def run(self, call: C_contra, clock: Callable[[], float]) -> A_co: ...

    async def run_async(self, call: C_contra, clock: Callable[[], float]) -> A_co: ...

    def raised(self, call: C_contra, error: BaseException) -> A_co: ...

    def timed_out(self, call: C_contra) -> A_co: ...


class Paces(Protocol):
    """How long calls of each kind take."""

    def may_be_quick(self, kind: int) -> bool:
        """Whether they are not known to be slow."""
        ...

    def is_quick(self, kind: int) -> bool:
        """Whether they are known to be over before a thread could be woken."""
        ...

    def pace(self, kind: int) -> float | None:
        """Seconds for each item, as far as is known."""
        ...
