"""Stages of every kind: the same function in a thread, on the event loop, and in a process of its own.

every_kind(pipeline, "work", lambda kind: lambda item, ctx: ctx.attempt)     # work.thread, work.loop, …
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from holdfast import Context, Item, Pipeline
from tests.support.bench import QUICK

#: Where a handler may run; each test has a stage of every kind, named like `work.loop`.
KINDS = ("thread", "loop", "process", "async_process")

Handler = Callable[[Item, Context], Any]


def stage(pipeline: Pipeline, kind: str, handler: Handler, **settings: Any) -> None:
    """Make a plain function a stage of the given kind."""

    async def on_the_loop(item: Item, ctx: Context) -> Any:
        await asyncio.sleep(0)
        return handler(item, ctx)

    isolate = "process" if "process" in kind else None
    pipeline.stage(**{"backoff": QUICK, "isolate": isolate, **settings})(
        on_the_loop if kind in ("loop", "async_process") else handler
    )


def every_kind(pipeline: Pipeline, name: str, make: Callable[[str], Handler], after: str = "", **settings: Any) -> None:
    """A stage of each kind; `make` is told the kind, and what follows follows the stage of its own kind."""
    for kind in KINDS:
        before = f"{after}.{kind}" if after else ()
        stage(pipeline, kind, make(kind), name=f"{name}.{kind}", after=before, **settings)


def keys(count: int) -> list[str]:
    return [f"page-{number}" for number in range(count)]
