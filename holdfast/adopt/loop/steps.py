"""Steps: lets sync and async code share the loop's logic.

Each piece of the loop is a generator that yields steps and gets back their results, or the errors they raised. So sequence
and error handling are written once; `drive` executes the steps in a thread, `drive_async` on an event loop.
"""

from __future__ import annotations

import asyncio
import contextvars
import inspect
import random
import time
from collections.abc import Awaitable, Callable, Coroutine, Generator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any, TypeVar, cast

from sqlalchemy import Engine

from holdfast.adopt.connections import Open, SyncPlace, check_user_code, is_async, opened, opened_async
from holdfast.adopt.database_errors import MOST_AGAIN, kind_of
from holdfast.adopt.rows.sqlite_direct import UNUSUAL, Direct, DirectLine
from holdfast.errors import UsageError
from holdfast.store.database_errors import ErrorKind

if TYPE_CHECKING:
    from sqlalchemy.ext.asyncio import AsyncEngine

    from holdfast.adopt.connections import AsyncPlace, Place

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Effect:
    """A function of the user's, called with the Connection or Session of a transaction."""

    function: Callable[..., Any]
    arguments: tuple[Any, ...] = ()
    named: Mapping[str, Any] = field(default_factory=dict)

    def __call__(self, place: Any) -> Any:
        return self.function(place, *self.arguments, **self.named)


@dataclass(frozen=True, slots=True)
class Transact:
    """Run the work and then the effects in one new transaction, and commit."""

    work: Callable[[Open], Any]
    effects: Sequence[Effect] = ()
    #: The work is a single statement, which needs no BEGIN and COMMIT.
    is_single: bool = False
    #: Builds that statement for SQLite's driver, anew for each execution.
    direct: Callable[[], Direct | None] | None = None


@dataclass(frozen=True, slots=True)
class Wait:
    seconds: float


@dataclass(frozen=True, slots=True)
class Pause:
    """Wait for a wake-up, at most for this long."""

    seconds: float


@dataclass(frozen=True, slots=True)
class Unbroken:
    """Run these steps to their end, even if the task is cancelled."""

    steps: Generator[Any, Any, Any]


#: What a piece may yield; an awaitable only on an event loop.
Step = Transact | Wait | Pause | Unbroken | Awaitable[Any]
Steps = Generator[Step, Any, T]


def patiently(step: Transact, may_wait: Callable[[BaseException], bool]) -> Steps[Any]:
    """Run a transaction, and retry it after transient errors: after a lost race almost at once, a few times; after others
    with backoff, while `may_wait` allows it."""
    lost_races = 0
    delay = 0.02
    while True:
        try:
            return (yield step)
        except Exception as error:
            kind = kind_of(error)
            if kind is ErrorKind.CONFLICT:
                lost_races += 1
                if lost_races > MOST_AGAIN:
                    raise
                yield Wait(random.uniform(0.0, 0.05))
            elif kind in (ErrorKind.PASSING, ErrorKind.MOVED) and may_wait(error):
                yield Wait(random.uniform(delay / 2, delay))
                delay = min(2 * delay, 2.0)
            else:
                raise


def drive(
    steps: Steps[T],
    at: SyncPlace,
    sleep: Callable[[float], Any] = time.sleep,
    line: DirectLine | None = None,
    pause: Callable[[float], Any] = time.sleep,
) -> T:
    """Run the steps in this thread."""

    def execute(step: Step) -> Any:
        match step:
            case Wait(length):
                return sleep(length)
            case Pause(length):
                return pause(length)
            case Unbroken(more):
                return drive(more, at, sleep, line, pause)
            case Transact():
                return _transact(step, at, line)
        raise AssertionError(f"{step!r} needs an event loop")

    resume: Callable[[Any], Step] = steps.send
    answer: Any = None
    while True:
        try:
            step = resume(answer)
        except StopIteration as end:
            return cast(T, end.value)
        try:
            resume, answer = steps.send, execute(step)
        except Exception as error:
            resume, answer = steps.throw, error


async def drive_async(
    steps: Steps[T],
    at: Place,
    in_thread: Callable[..., Any] = asyncio.to_thread,
    pause: Callable[[float], Awaitable[Any]] = asyncio.sleep,
) -> T:
    """Run the steps on the event loop; transactions on a sync engine run in a thread."""

    async def execute(step: Step) -> Any:
        match step:
            case Wait(length):
                return await asyncio.sleep(length)
            case Pause(length):
                return await pause(length)
            case Unbroken(more):
                return await _to_its_end(drive_async(more, at, in_thread, pause))
            case Transact():
                if is_async(at):
                    return await _transact_async(step, cast("AsyncPlace", at))
                return await in_thread(_transact, step, cast(SyncPlace, at))
        return await step

    resume: Callable[[Any], Step] = steps.send
    answer: Any = None
    while True:
        try:
            step = resume(answer)
        except StopIteration as end:
            return cast(T, end.value)
        try:
            resume, answer = steps.send, await execute(step)
        except Exception as error:
            resume, answer = steps.throw, error


async def _to_its_end(work: Coroutine[Any, Any, T]) -> T:
    task = asyncio.ensure_future(work)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        await task
        raise


@lru_cache(maxsize=100)
def _autocommit(engine: Engine) -> Engine:
    """The same engine without BEGIN and COMMIT around each statement."""
    return engine.execution_options(isolation_level="AUTOCOMMIT")


def _transact(step: Transact, at: SyncPlace, line: DirectLine | None = None) -> Any:
    if step.direct is not None and isinstance(at, Engine):
        answer = (line or DirectLine()).transact(at, step.direct)
        if answer is not UNUSUAL:
            return answer
    if step.is_single and isinstance(at, Engine) and at.dialect.name == "postgresql":
        with _autocommit(at).connect() as connection:
            return step.work(connection)
    with opened(at) as place:
        answer = step.work(place)
        for effect in step.effects:
            if inspect.isawaitable(waiting := effect(place)):
                if inspect.iscoroutine(waiting):
                    waiting.close()
                raise UsageError(f"{effect.function!r} is async, and the engine is not; give it an async engine")
        if step.effects:
            check_user_code(place)
        return answer


async def _transact_async(step: Transact, at: AsyncPlace) -> Any:
    engine = cast("AsyncEngine", at)
    if step.is_single and hasattr(at, "sync_engine") and engine.dialect.name == "postgresql":
        async with engine.execution_options(isolation_level="AUTOCOMMIT").connect() as connection:
            return await connection.run_sync(step.work)
    async with opened_async(at) as place:
        answer = await place.run_sync(step.work)
        for effect in step.effects:
            waiting = effect(place)
            if inspect.isawaitable(waiting):
                await waiting
        if step.effects:
            await place.run_sync(check_user_code)
        return answer


class OwnThreads:
    """Up to `width` threads for a loop that runs on an event loop, whose default executor is small and shared."""

    def __init__(self, width: int, name: str) -> None:
        self._threads = ThreadPoolExecutor(width, thread_name_prefix=name)

    async def call(self, function: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
        work = partial(contextvars.copy_context().run, function, *arguments, **named)
        return await asyncio.get_running_loop().run_in_executor(self._threads, work)

    def close(self) -> None:
        """Accept no more calls; running ones finish on their own."""
        self._threads.shutdown(wait=False)
