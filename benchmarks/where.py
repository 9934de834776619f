"""Where the microseconds of a step go: CPU of each part of a worker, and of each statement.

    python -m benchmarks.where [--items 40000] [--stages 1] [--sync] [--only sqlite|postgres]

One worker, handlers that do nothing. A line is CPU of its thread per step, and, for what waits for the database, the time
from call to answer; lines below another are part of it. On SQLite such handlers are committed by the thread that ran them:
its line has rounds in it. Measuring costs about a microsecond per step itself.
"""

from __future__ import annotations

import argparse
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from benchmarks.databases import Database, databases
from holdfast import Holdfast, Pipeline
from holdfast.engine import complete
from holdfast.runtime.async_pool import _Loop
from holdfast.runtime.thread_pool import ThreadPool
from holdfast.store import Transaction, Write
from holdfast.worker.commit.committer import Committer
from holdfast.worker.commit.settle_and_claim import SettleAndClaim
from holdfast.worker.commit.who_commits import CommitTurns

#: Who is measured, under which name, and how far in it stands.
PARTS: tuple[tuple[Any, str, str, int], ...] = (
    (CommitTurns, "_run", "the thread that commits", 0),
    (_Loop, "_serve", "the event loop with its handlers", 0),
    (ThreadPool, "_serve", "threads with handlers", 0),
    (Committer, "_one_round", "a round, in any of these", 0),
    (Write, "run", "a transaction", 1),
    (Committer, "_cycle", "what it does", 2),
    (complete, "end_leases", "end leases", 3),
    (complete, "move_leases", "move leases on", 3),
    (complete, "save_outcomes", "save outcomes", 3),
    (SettleAndClaim, "_claim", "claim", 3),
    (Transaction, "flush", "counts and events", 2),
    (Committer, "_deliver", "hand out calls", 1),
)


class Meter:
    """CPU and waiting by name, in seconds."""

    def __init__(self) -> None:
        self.spent: defaultdict[str, list[float]] = defaultdict(lambda: [0.0, 0.0, 0.0])

    def measured(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def run(*given: Any, **named: Any) -> Any:
            cpu, began = time.thread_time(), time.perf_counter()
            try:
                return function(*given, **named)
            finally:
                entry = self.spent[name]
                entry[0] += time.thread_time() - cpu
                entry[1] += time.perf_counter() - began
                entry[2] += 1

        return run

    def statement(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """A method of a transaction that runs a statement, told by the statement's name."""

        def run(tx: Transaction, statement: str, /, *given: Any, **named: Any) -> Any:
            return self.measured(f"statement {statement}", function)(tx, statement, *given, **named)

        return run


@contextmanager
def metered() -> Iterator[Meter]:
    meter = Meter()
    kept = [(owner, name, getattr(owner, name)) for owner, name, *_ in PARTS]
    kept += [(Transaction, name, getattr(Transaction, name)) for name in ("run", "run_rows")]
    for owner, name, shown, _ in PARTS:
        setattr(owner, name, meter.measured(shown, getattr(owner, name)))
    for name in ("run", "run_rows"):
        setattr(Transaction, name, meter.statement(getattr(Transaction, name)))
    try:
        yield meter
    finally:
        for owner, name, function in kept:
            setattr(owner, name, function)


async def _idle(item: Any, ctx: Any) -> None:
    return None


def _idle_sync(item: Any, ctx: Any) -> None:
    return None


def measure(database: Database, items: int, stages: int, sync: bool) -> None:
    url = database.fresh()
    pipeline = Pipeline("where", store=url)
    for number in range(stages):
        pipeline.stage(name=f"s{number}", after=[f"s{number - 1}"] if number else [])(_idle_sync if sync else _idle)
    pipeline.add([{"key": f"item-{number:08d}", "page": number} for number in range(items)])
    steps = items * stages
    server = database.cpu_seconds()
    with Holdfast(url, [pipeline.spec]) as app, metered() as meter:
        cpu, began = time.process_time(), time.perf_counter()
        app.run()
        cpu, took = time.process_time() - cpu, time.perf_counter() - began
        # A worker does not wait for idle threads to end, which is when they have been measured.
        for thread in threading.enumerate():
            if thread.name == "holdfast-handler":
                thread.join(5)
    server = None if server is None else (database.cpu_seconds() or 0.0) - server
    database.drop(url)

    print(f"\n{database.title}\n{'µs per step':>54} {'CPU':>7} {'until answered':>15} {'calls':>7}")
    print(f"{'in all':<54} {1e6 * cpu / steps:7.2f} {1e6 * took / steps:15.2f}")
    if server is not None:
        print(f"{'the server':<54} {1e6 * server / steps:7.2f}")
    shown = [(name, depth) for _, _, name, depth in PARTS]
    statements = sorted(
        (name for name in meter.spent if name.startswith("statement ")), key=lambda name: -meter.spent[name][1]
    )
    for name, depth in [*shown, *((name, 0) for name in statements[:12])]:
        spent, waited, calls = meter.spent.get(name, (0.0, 0.0, 0))
        if calls:
            print(f"{'  ' * depth + name:<54} {1e6 * spent / steps:7.2f} {1e6 * waited / steps:15.2f} {calls:7.0f}")


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.where", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--items", type=int, default=40_000)
    parser.add_argument("--stages", type=int, default=1)
    parser.add_argument("--sync", action="store_true", help="plain functions in threads instead of async ones")
    parser.add_argument("--only", choices=("sqlite", "postgres"))
    parser.add_argument("--folder", type=Path, help="where to put the databases")
    options = parser.parse_args()
    with databases(options.only, options.folder, None) as chosen:
        for database in chosen:
            measure(database, options.items, options.stages, options.sync)


if __name__ == "__main__":
    main()
