"""The pipelines that worker processes run in tests. What happens to an item is written in its data:

    {"key": "page-1", "fetch": "sleep 0.5"}         its stage `fetch` sleeps
    {"key": "page-2", "extract": "abort"}           its stage `extract` ends the process with SIGABRT

A word from `ACTS`, then its argument; several follow each other with `; `. `once:` before a word makes it happen in the
first attempt only.
"""

from __future__ import annotations

import asyncio
import ctypes
import functools
import itertools
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import psutil

from holdfast import Backoff, BatchContext, Context, Item, Permanent, Pipeline, RetryLater, Skip
from tests.support.ledger import Ledger

ledger = Ledger(Path(os.environ.get("HOLDFAST_TEST_LEDGER", os.devnull)))
QUICK = Backoff(first_seconds=0.02, most_seconds=0.05)

_numbers = itertools.count(1)


# What a handler may be told to do -------------------------------------------------------------------------------------


def _raise(name: str) -> None:
    errors: dict[str, BaseException] = {
        "exit": SystemExit(0),
        "interrupt": KeyboardInterrupt(),
        "cancelled": asyncio.CancelledError(),
        "generator": GeneratorExit(),
        "memory": MemoryError(),
        "permanent": Permanent("can never work"),
    }
    raise errors.get(name) or RuntimeError(name)


def _hold_the_interpreter(seconds: str) -> None:
    """A call into C that lets no other thread of this process run: PyDLL keeps the interpreter's lock."""
    ctypes.PyDLL(None).usleep(int(float(seconds) * 1e6))


def _touch_null(_: str) -> None:
    ctypes.string_at(0)


def _fill_memory(megabytes: str) -> None:
    pile = []
    for _ in range(int(megabytes)):
        pile.append(bytearray(os.urandom(1)) * (1 << 20))


def _leave_fork(seconds: str) -> None:
    """A child made with os.fork that outlives the handler."""
    if os.fork() == 0:
        try:
            time.sleep(float(seconds))
        finally:
            os._exit(0)


def _leave_subprocess(seconds: str) -> None:
    subprocess.Popen([sys.executable, "-c", f"import time; time.sleep({seconds})"])


def _use_a_pool(_: str) -> None:
    """Leaving the pool ends its processes with SIGTERM and waits for them."""
    with multiprocessing.get_context("fork").Pool(2) as pool:
        pool.map(abs, [-1, -2])


def _leave_process(seconds: str) -> None:
    multiprocessing.get_context("fork").Process(target=time.sleep, args=(float(seconds),), daemon=True).start()


ACTS: dict[str, Callable[[str], Any]] = {
    "sleep": lambda seconds: time.sleep(float(seconds)),
    "raise": _raise,
    "abort": lambda _: os.abort(),
    "segfault": _touch_null,
    "leave": lambda code: os._exit(int(code)),
    "kill-parent": lambda _: os.kill(os.getppid(), signal.SIGKILL),
    "kill-worker": lambda _: _kill_worker(_),
    "hang": lambda _: threading.Event().wait(),
    "spin": lambda _: _spin(),
    "hold": _hold_the_interpreter,
    "fill": _fill_memory,
    "fork": _leave_fork,
    "split": lambda _: os.fork() and None,
    "subprocess": _leave_subprocess,
    "process": _leave_process,
    "pool": _use_a_pool,
}


def _kill_worker(_: str) -> None:
    """From a process of its own: the parent is the process that makes such, and its parent is the worker."""
    os.kill(psutil.Process(os.getppid()).ppid(), signal.SIGKILL)
    threading.Event().wait()


def _spin() -> None:
    while True:
        pass


def _perform(script: str, ctx: Context) -> Any:
    """Do what the script says; what an act returns is what the handler returns."""
    for part in script.split("; "):
        if part.startswith("once:"):
            if ctx.attempt > 1:
                continue
            part = part.removeprefix("once:")
        word, _, argument = part.partition(" ")
        if word == "skip":
            return Skip(argument)
        if word == "later":
            return RetryLater(after=float(argument))
        if word == "until":
            _wait_for_file(Path(argument), ctx)
        elif word:
            ACTS[word](argument)
    return None


def _wait_for_file(path: Path, ctx: Context) -> None:
    """Wait for a gate to open; the ledger hears of it if the worker is asked to stop meanwhile."""
    told = False
    while not path.exists():
        if ctx.stopping and not told:
            told = True
            ledger.append("stopping", ctx.item.key, attempt=ctx.attempt)
        time.sleep(0.005)


# Handlers -------------------------------------------------------------------------------------------------------------


def _start(stage: str, before: str | None, item: Item, ctx: Context) -> str:
    mark = f"{os.getpid()}.{next(_numbers)}"
    seen = ""
    if before is not None:
        result = ctx.result(before)
        seen = "" if result is None else f"{before} {result['mark']}"
    ledger.append("start", item.key, stage, ctx.attempt, mark=mark, seen=seen)
    return mark


def _end(stage: str, item: Item, ctx: Context, mark: str, answer: Any) -> Any:
    ledger.append("end", item.key, stage, ctx.attempt, mark=mark)
    return {"mark": mark} if answer is None else answer


def told(stage: str, before: str | None = None) -> Callable[[Item, Context], Any]:
    """A sync handler."""

    def handler(item: Item, ctx: Context) -> Any:
        mark = _start(stage, before, item, ctx)
        return _end(stage, item, ctx, mark, _perform(item.data.get(stage, ""), ctx))

    return handler


def told_async(stage: str, before: str | None = None) -> Callable[[Item, Context], Any]:
    """The same on the event loop; `rest` sleeps without blocking it, the other acts block."""

    async def handler(item: Item, ctx: Context) -> Any:
        mark = _start(stage, before, item, ctx)
        script = item.data.get(stage, "")
        word, _, argument = script.partition(" ")
        if word == "rest":
            await asyncio.sleep(float(argument))
            return _end(stage, item, ctx, mark, None)
        return _end(stage, item, ctx, mark, _perform(script, ctx))

    return handler


def told_batch(stage: str, before: str | None = None) -> Callable[[Sequence[Item], BatchContext], Any]:
    def handler(items: Sequence[Item], ctx: BatchContext) -> Any:
        marks = [_start(stage, before, item, ctx.of(item)) for item in items]
        return [
            _end(stage, item, ctx.of(item), mark, _perform(item.data.get(stage, ""), ctx.of(item)))
            for item, mark in zip(items, marks, strict=True)
        ]

    return handler


def _pipeline(name: str, make: Callable[..., Any], **settings: Any) -> Pipeline:
    """fetch → extract → save."""
    pipeline = Pipeline(name)
    before = None
    for stage in ("fetch", "extract", "save"):
        pipeline.stage(name=stage, after=before or (), **{"max_attempts": 3, "backoff": QUICK, **settings})(
            make(stage, before)
        )
        before = stage
    return pipeline


books = _pipeline("books", told)
quick_books = _pipeline("quick_books", told, timeout=0.5)
async_books = _pipeline("async_books", told_async)
quick_async_books = _pipeline("quick_async_books", told_async, timeout=0.5)
isolated_books = _pipeline("isolated_books", told, isolate="process", timeout=3)
batched_books = _pipeline("batched_books", told_batch, batch=8)
patient_books = _pipeline("patient_books", told, max_attempts=20)


def told_in_the_log(stage: str, before: str | None = None) -> Callable[[Item, Context], Any]:
    """A sync handler that records an event with the mark of its run."""

    def handler(item: Item, ctx: Context) -> Any:
        mark = _start(stage, before, item, ctx)
        ctx.event("user.ran", mark=mark)
        return _end(stage, item, ctx, mark, _perform(item.data.get(stage, ""), ctx))

    return handler


eventful_books = _pipeline("eventful_books", told_in_the_log)


def told_with_ballast(stage: str, before: str | None = None) -> Callable[[Item, Context], Any]:
    """A sync handler with a result of 40 kB that no database can compress much."""
    plain = told(stage, before)
    return lambda item, ctx: {**plain(item, ctx), "ballast": os.urandom(20_000).hex()}


heavy_books = _pipeline("heavy_books", told_with_ballast)

# One quick stage ------------------------------------------------------------------------------------------------------

counted = Pipeline("counted")


@counted.stage(name="count")
async def count(item: Item, ctx: Context) -> None:
    """Append the key to a file of this process: executions, counted outside the database."""
    os.write(_own_file(), f"{item.key}\n".encode())


@functools.cache
def _own_file() -> int:
    return os.open(f"{ledger.path}.{os.getpid()}", os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666)


counted_slowly = Pipeline("counted_slowly")


@counted_slowly.stage(name="count")
async def count_slowly(item: Item, ctx: Context) -> None:
    """The first attempt never ends; the next one, in whatever process, does."""
    if ctx.attempt == 1:
        await asyncio.sleep(3600)
    os.write(_own_file(), f"{item.key}\n".encode())


@counted_slowly.stage(name="report", after="count")
async def report(item: Item, ctx: Context) -> None:
    """A stage that a worker may offer without running the other."""
