"""A call of user code as the pools see it: its timeout, when it started, and which of several results counts."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

from holdfast.errors import StageTimeout
from holdfast.model.durations import spoken


class Call:
    """The methods that all calls share. Subclasses declare the fields, in the form that is cheapest for thousands of
    calls.
    """

    __slots__ = ()

    #: Calls of one kind take about the same time.
    kind: int
    #: On the monotonic clock; 0 before the call starts.
    started: float
    #: Set on a call that the pool abandoned after its timeout: the thread or task that runs it must not take more work.
    abandoned: bool
    #: Whichever thread removes its one byte decides how the call ended. A bytearray, because the garbage collector does
    #: not track it.
    _end: bytearray

    def end(self) -> bool:
        """True for the first caller: the handler, a timeout or a shutdown decides how this call ended. Later callers
        get False.
        """
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
        """Whether the call is over and its child process is still writing the result."""
        return False

    def is_overdue(self, now: float, patience_seconds: float = 0.0) -> bool:
        """Whether it has been running for longer than its timeout and this much more."""
        limit = self.timeout_seconds
        return limit is not None and bool(self.started) and now - self.started > limit + patience_seconds

    def close(self) -> None:
        """Make the objects that the handler was given unusable, even if a stray thread still holds them."""

    @property
    def label(self) -> str:
        """How messages refer to the call."""
        raise NotImplementedError

    @property
    def timeout_seconds(self) -> float | None:
        raise NotImplementedError

    def timeout_error(self) -> StageTimeout:
        assert self.timeout_seconds is not None
        return StageTimeout(f"ran longer than {spoken(self.timeout_seconds)}")

    @property
    def goes_first(self) -> bool:
        """Whether it starts before other calls because it holds a shared resource."""
        return False

    @property
    def is_single(self) -> bool:
        """Whether it serves one item rather than a batch."""
        return True

    @property
    def size(self) -> float:
        """How many items it serves; infinite for a call that must not share a bundle."""
        return 1


C = TypeVar("C", bound=Call)
C_contra = TypeVar("C_contra", bound=Call, contravariant=True)
A_co = TypeVar("A_co", covariant=True)


@dataclass(frozen=True, slots=True)
class CallOwner(Generic[C]):
    """Where the calls of a pool come from, and where their results go."""

    #: How many of its calls may run at once.
    width: int
    #: Receives the result of a call.
    report: Callable[[C, Any], None]
    #: Whether a waiting call may start now.
    may_start: Callable[[C], bool]
    #: Called when nothing is left to run, with a function that says whether the thread is free for other work. Returns
    #: True if there may be new calls.
    out_of_work: Callable[[Callable[[], bool]], bool] = lambda is_free: False


class Runner(Protocol[C_contra, A_co]):
    """Runs the handler of a call and turns its result into an answer."""

    def run(self, call: C_contra, clock: Callable[[], float]) -> A_co: ...

    def raised(self, call: C_contra, error: BaseException) -> A_co:
        """The answer for a call whose handler raised, or that timed out."""
        ...


class AsyncRunner(Protocol[C_contra, A_co]):
    """The same for an async handler."""

    async def run_async(self, call: C_contra, clock: Callable[[], float]) -> A_co: ...

    def raised(self, call: C_contra, error: BaseException) -> A_co: ...


class Paces(Protocol):
    """How long calls of each kind take."""

    def may_be_quick(self, kind: int) -> bool:
        """Whether calls of this kind are not known to be slow."""
        return False

    def is_quick(self, kind: int) -> bool:
        """Whether calls of this kind are known to end before a thread could be woken."""
        return False

    def pace(self, kind: int) -> float | None:
        """Seconds per item; None if unknown."""
        return None


def abandon(call: C) -> bool:
    """End a call although its handler still runs. False if it has already ended."""
    # Set before it is ended: a thread or task that finds its call ended must see why.
    call.abandoned = True
    if not call.end():
        call.abandoned = False
        return False
    call.close()
    return True


def emptied(calls: deque[C]) -> list[C]:
    """Take all calls out of a queue from which other threads take some, too."""
    taken = []
    while True:
        try:
            taken.append(calls.popleft())
        except IndexError:
            return taken
