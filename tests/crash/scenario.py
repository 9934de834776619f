"""The scenario of the sweeps, as a program of its own: three items, a fan-in, a batch, an attempt that fails.

    Forked("tests.crash.scenario", [json.dumps(order)], os.environ)

An order names the store, the ledger, and what happens to the process:

    {"crash_at": "store:17"}        ended with SIGKILL at the 17th statement (HOLDFAST_CRASH_AT)
    {"fail_at": 17}                 the database fails its 17th statement, once
    {"lose": 17}                    the reply to its 17th COMMIT is lost
"""

from __future__ import annotations

import itertools
import json
import os
import sys
import threading
from collections.abc import Sequence
from pathlib import Path

from holdfast import Backoff, BatchContext, Context, Holdfast, Item, Pipeline, points
from holdfast.errors import StoreUnavailable
from holdfast.testing import CRASH_VARIABLE, crash_from_environment
from holdfast.worker import Settings
from tests.mutants.bugs import from_environment
from tests.support.ledger import Ledger

KEYS = ("k0", "k1", "k2")
LEASE_SECONDS = 1.0

sweep = Pipeline("sweep")
ledger = Ledger(Path(os.devnull))
_numbers = itertools.count(1)
QUICK = Backoff(first_seconds=0.005, most_seconds=0.005)


def work(item: Item, ctx: Context, stage: str, *before: str) -> dict[str, str]:
    """Every execution has a mark of its own, and says whose results it has seen."""
    mark = f"{os.getpid()}.{next(_numbers)}"
    seen = {name: ctx.result(name)["mark"] for name in before}
    for name in before or ("",):
        ledger.append("start", item.key, stage, ctx.attempt, mark=mark, seen=f"{name} {seen[name]}" if name else "")
        break
    for name in before[1:]:
        ledger.append("saw", item.key, stage, ctx.attempt, mark=mark, seen=f"{name} {seen[name]}")
    if (item.key, stage, ctx.attempt) == ("k1", "parse", 1):
        raise ValueError("this attempt fails")
    ledger.append("end", item.key, stage, ctx.attempt, mark=mark)
    return {"mark": mark}


@sweep.stage(backoff=QUICK)
def fetch(item: Item, ctx: Context) -> dict[str, str]:
    return work(item, ctx, "fetch")


@sweep.stage(after="fetch", backoff=QUICK)
async def parse(item: Item, ctx: Context) -> dict[str, str]:
    return work(item, ctx, "parse", "fetch")


@sweep.stage(after="fetch", batch=2, backoff=QUICK)
def embed(items: Sequence[Item], ctx: BatchContext) -> list[dict[str, str]]:
    return [work(item, ctx.of(item), "embed", "fetch") for item in items]


@sweep.stage(after=["parse", "embed"], backoff=QUICK)
def link(item: Item, ctx: Context) -> dict[str, str]:
    return work(item, ctx, "link", "parse", "embed")


def run(url: str) -> None:
    """Add the items, which may be there already, and take them through."""
    with Holdfast(url, [sweep.spec]) as app:
        app.add("sweep", KEYS)
        app.run(Settings(concurrency=2, lease_seconds=LEASE_SECONDS, poll_seconds=0.05, grace_seconds=0.0))


class Fault:
    """Fails one statement, or loses one reply; the process itself goes on."""

    def __init__(self, fail_at: int, lose: int) -> None:
        self._left = {"store": fail_at, "commit.after": lose}
        self._lock = threading.Lock()

    def __call__(self, point: str) -> None:
        with self._lock:
            kind = "store" if point.startswith("store.") else point
            if kind not in self._left:
                return
            self._left[kind] -= 1
            strikes = self._left[kind] == 0
        if strikes:
            ledger.append("struck", point)
            raise StoreUnavailable(f"the test lost {point}")


def main() -> None:
    global ledger
    order = json.loads(sys.argv[1])
    from_environment()
    ledger = Ledger(Path(order["ledger"]))
    os.environ[CRASH_VARIABLE] = order.get("crash_at", "")
    crash_from_environment()
    if "fail_at" in order or "lose" in order:
        points.listen(Fault(order.get("fail_at", 0), order.get("lose", 0)))
    run(order["url"])
