"""Pipelines that use a resource, for workers in processes of their own: what crash tests of limits run.

    called:   call (one request to the counting server)
    bought:   call (one paid request; 0.40 expected, 0.38 paid)
    held:     call (waits for a file; what it does is told to a ledger)

Workers are forked by the herd of `paid_workers`, in a hundredth of the time that a new one takes:

    with LimitedHerd(url, folder, "called", server.environment) as herd: ...
"""

from __future__ import annotations

import os
import time
from pathlib import Path

from holdfast import Backoff, Context, Holdfast, Item, Pipeline
from tests.support import paid_books, paid_workers
from tests.support.counting_server import call as ask
from tests.support.ledger import Ledger

QUICK = Backoff(first_seconds=0.02, most_seconds=0.05)
ESTIMATE, PRICE = 0.40, 0.38

called = Pipeline("called")
bought = Pipeline("bought")
held = Pipeline("held")


@called.stage(name="call", resource="api", max_attempts=1000, backoff=QUICK)
def called_call(item: Item, ctx: Context) -> int:
    return ask(item.key)


@bought.stage(name="call", resource="api", max_attempts=1000, backoff=QUICK, estimate=ESTIMATE)
def bought_call(item: Item, ctx: Context) -> int:
    value: int = ctx.once("call", ask, item.key, cost=PRICE)
    return value


@held.stage(name="call", resource="api", max_attempts=1000, backoff=QUICK, estimate=ESTIMATE)
def held_call(item: Item, ctx: Context) -> None:
    Ledger(Path(os.environ["HOLDFAST_TEST_LEDGER"])).append("start", item.key, "call", ctx.attempt)
    wanted = item.data.get("until")
    if item.data.get("fail"):
        raise ConnectionError("nobody is there")
    while wanted and not os.path.exists(wanted):
        time.sleep(0.01)


PIPELINES = {one.name: one for one in (called, bought, held)}


def app_for(url: str, name: str, **api: object) -> Holdfast:
    """The test's own app; what it says of the resource holds for all workers."""
    return Holdfast(url, [PIPELINES[name].spec], resources={"api": api})


class LimitedHerd(paid_workers.Herd):
    """Workers of one of these pipelines."""

    home = __name__


def main() -> None:
    # In this process, which is a worker of these: others have pipelines of the same names.
    paid_books.ALL.update({name: [one] for name, one in PIPELINES.items()})
    paid_workers.main()


prepare = paid_workers.prepare
