"""Calls of a loop's handler: one for each claimed row."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from holdfast.adopt.loop.job import Job
from holdfast.adopt.loop.state import LoopState
from holdfast.adopt.rows.outcome import BROKEN_OFF
from holdfast.runtime.call import Call

#: A thread keeps its connection for the next row if the handler took less than this.
QUICK_SECONDS = 0.001
#: The weight of a new duration in the moving average.
WEIGHT = 0.2


class RowCall(Call):
    """One call of the handler, for one row."""

    __slots__ = ("_end", "_name", "abandoned", "is_being_saved", "job", "kind", "started", "timeout_seconds")

    is_being_saved: bool
    timeout_seconds: float | None

    def __init__(self, job: Job, name: str, timeout_seconds: float | None) -> None:
        self.job = job
        self.kind = 0
        self.started = 0.0
        self.abandoned = False
        self.is_being_saved = False
        self.timeout_seconds = timeout_seconds
        self._name = name
        self._end = bytearray(1)

    @property
    def label(self) -> str:
        return f"{self._name}: row {self.job.key!r}"


class HandlerPace:
    """How long the handler takes. No call counts as quick: a row's outcome is saved before the next call begins."""

    def __init__(self) -> None:
        self._mean: float | None = None

    def learn(self, seconds: float) -> None:
        self._mean = seconds if self._mean is None else self._mean + WEIGHT * (seconds - self._mean)

    def may_be_quick(self, kind: int) -> bool:
        return False

    def is_quick(self, kind: int) -> bool:
        return False

    def pace(self, kind: int) -> float | None:
        return self._mean

    def is_brief(self, seconds: float) -> bool:
        return seconds < QUICK_SECONDS


#: Saves the outcome of a call: what its handler returned or raised, and how long it took.
Save = Callable[[RowCall, Any, BaseException | None, float], None]
SaveAsync = Callable[[RowCall, Any, BaseException | None], Awaitable[None]]


class RowRunner:
    """Calls the handler, and saves the row's outcome before the next call begins in the same place."""

    def __init__(self, loop: LoopState, paces: HandlerPace, save: Save, save_async: SaveAsync | None = None) -> None:
        self._loop = loop
        self._paces = paces
        self._save = save
        self._save_async = save_async

    def run(self, call: RowCall, clock: Callable[[], float]) -> BaseException | None:
        returned: Any = None
        error: BaseException | None = None
        try:
            returned = self._loop.handler(call.job)
        except BaseException as raised:
            # In a thread, only the handler's own code can raise these: nothing interrupted it.
            error = raised if not isinstance(raised, BROKEN_OFF) else RuntimeError(f"the handler raised {raised!r}")
        took = clock() - call.started
        self._paces.learn(took)
        self._save(call, returned, error, took)
        return None

    async def run_async(self, call: RowCall, clock: Callable[[], float]) -> BaseException | None:
        returned: Any = None
        error: BaseException | None = None
        try:
            async with asyncio.timeout(call.timeout_seconds) as scope:
                returned = await self._loop.handler(call.job)
        except TimeoutError as raised:
            error = call.timeout_error() if scope.expired() else raised
        except asyncio.CancelledError as raised:
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                raise
            error = raised
        except BaseException as raised:
            error = raised
        self._paces.learn(clock() - call.started)
        assert self._save_async is not None
        await self._save_async(call, returned, error)
        return None

    def raised(self, call: RowCall, error: BaseException) -> BaseException:
        return error
