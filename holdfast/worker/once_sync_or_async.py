"""Runs a sub-step, written once as a sequence of things to wait for, in a sync or an async handler."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Generator
from concurrent.futures import Future
from typing import Any, NamedTuple

from holdfast.model.functions import is_async


class UserCall(NamedTuple):
    """A user function to call."""

    function: Callable[..., Any]
    args: tuple[Any, ...]


#: Yields what to wait for, one after another.
SubSteps = Generator[Future[None] | UserCall, Any, Any]


def run(steps: SubSteps) -> Any:
    """Run the sub-step in a sync handler."""
    try:
        step = next(steps)
        while True:
            try:
                result = step.function(*step.args) if isinstance(step, UserCall) else step.result()
            except BaseException as error:
                step = steps.throw(error)
            else:
                step = steps.send(result)
    except StopIteration as end:
        return end.value


async def run_async(steps: SubSteps) -> Any:
    """Run the sub-step in an async handler. A sync function runs in a thread, so that it does not block the loop."""
    try:
        step = next(steps)
        while True:
            try:
                waited = _called(*step) if isinstance(step, UserCall) else asyncio.wrap_future(step)
                result = await waited
            except BaseException as error:
                step = steps.throw(error)
            else:
                step = steps.send(result)
    except StopIteration as end:
        return end.value


async def _called(function: Callable[..., Any], args: tuple[Any, ...]) -> Any:
    value = function(*args) if is_async(function) else await asyncio.to_thread(function, *args)
    return await value if inspect.isawaitable(value) else value
