"""holdfast's side: it carries out the same orders as the peers' scripts."""

from __future__ import annotations

import asyncio
import random
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks import filling, mixture, pages, questions, tabs
from benchmarks.board import Board, now, wait_until
from benchmarks.child import Facts, Order, cpu_seconds, main, most_memory_mb
from benchmarks.sending import send_each
from benchmarks.steady import steady_rate
from holdfast import Holdfast, Pipeline
from holdfast.model.states import State
from holdfast.worker import Settings

NAME = "bench"
#: What may begin at once under a shared limit: little, so that the rate is what counts.
BURST = 20

Handler = Callable[[Any, Any], Any]


def pipeline(order: Order, handler: Callable[[int], Handler] | None = None) -> Pipeline:
    """Stages one after another, named s1, s2, …"""
    limits: dict[str, dict[str, Any]] = {"api": {"rate": f"{order.rate}/s", "burst": BURST}} if order.rate else {}
    slots: dict[str, dict[str, Any]] = {}
    if order.handler_ms:
        slots = {"slots": {"concurrency": order.slots} if order.slots else {}}
    made = Pipeline(NAME, store=order.url, resources={**limits, **slots})
    for number in range(1, order.stages + 1):
        after = [f"s{number - 1}"] if number > 1 and not order.apart else []
        used = [*limits, *(slots if number == order.stages else ())]
        made.stage(name=f"s{number}", after=after, resource=used)((handler or _idle(order))(number))
    return made


def app_of(order: Order, handler: Callable[[int], Handler] | None = None) -> Holdfast:
    made = pipeline(order, handler)
    return Holdfast(order.url, [made.spec], resources=made.resources)


def settings_of(order: Order) -> Settings:
    return Settings(concurrency=order.concurrency or 16, lease_seconds=order.lease_seconds)


# Orders ---------------------------------------------------------------------------------------------------------------


def add(order: Order) -> Facts:
    items = [{"key": f"item-{number:08d}", "page": number} for number in range(order.items)]
    with app_of(order) as app:
        app.register()
        order.ready()
        began = now()
        if order.bulk:
            app.add(NAME, items)
        else:
            for item in items:
                app.add(NAME, [item])
        return {"seconds": now() - began}


def drain(order: Order) -> Facts:
    """Take every item through; the time runs from the worker's start until the last of them is committed."""
    with app_of(order, _sleeping(order) if order.rate or order.handler_ms else None) as app:
        worker = app.worker(settings_of(order))
        done = _Noted()

        def note_from_here() -> None:
            worker._committer.done = done.after(worker._committer.done)

        order.ready()
        spent, began = cpu_seconds(), now()
        # The first tick comes when the parts of the worker are made; there is no second one.
        worker.run(until_drained=True, on_tick=note_from_here, tick_seconds=1e6)
        states = [stage.states for stage in app.status().pipelines[0].stages]
        if states != [{"done": order.items}] * order.stages:
            raise SystemExit(f"not every item is done: {states}")
    return {
        "began": began,
        "ended": max(done.changed_at, began),
        "cpu_seconds": max(done.cpu_then - spent, 0.0),
        "memory_mb": most_memory_mb(),
    }


class _Noted(dict[State, int]):
    """Counts of a worker, and when one of them has last changed: right after a commit. That a worker knows of an end which
    another process made takes it a poll."""

    changed_at = 0.0
    cpu_then = 0.0

    def after(self, counts: dict[State, int]) -> _Noted:
        """The same counts, noted from here on."""
        self.update(counts)
        self.changed_at, self.cpu_then = now(), cpu_seconds()
        return self

    def __setitem__(self, state: State, count: int) -> None:
        if count != self.get(state):
            super().__setitem__(state, count)
            self.changed_at, self.cpu_then = now(), cpu_seconds()


def drain_some(order: Order) -> Facts:
    """What a claim costs, and the rate of a worker that leaves most of what waits behind."""
    times: list[float] = []

    async def note(item: Any, ctx: Any) -> None:
        times.append(now())

    claim_ms = filling.claim_ms(order.url)
    if not order.most:
        order.ready()
        return {"claim_ms": claim_ms}
    with app_of(order, lambda _: note) as app:
        worker = app.worker(settings_of(order))

        def stop_in_time() -> None:
            wait_until(lambda: len(times) >= order.most, 3600)
            worker.stop()

        threading.Thread(target=stop_in_time, daemon=True).start()
        order.ready()
        began = now()
        worker.run()
    return {
        "rate": steady_rate(times, order.most),
        "first_ms": 1000 * (times[0] - began),
        "claim_ms": claim_ms,
        "memory_mb": most_memory_mb(),
    }


def serve(order: Order) -> Facts:
    """Work until killed; the handlers tell the board."""
    with app_of(order, _holding(order) if order.hold else _telling(order)) as app:
        order.ready()
        app.worker(settings_of(order)).run()
    return {}


def send(order: Order) -> Facts:
    with app_of(order) as app:
        order.ready()
        return send_each(order, lambda number: app.add(NAME, [{"key": f"item-{number:08d}", "page": number}]))


def fill(order: Order) -> Facts:
    """Make a store with very many items, by statements over sets."""
    order.ready()
    filling.fill(order)
    return {}


def ask(order: Order) -> Facts:
    with app_of(order) as app:
        order.ready()
        return questions.ask(app, order.items)


def fill_mixture(order: Order) -> Facts:
    order.ready()
    mixture.fill(order.url, order.items)
    return {}


def browse(order: Order) -> Facts:
    order.ready()
    return pages.measure(order.url, order.items)


def export(order: Order) -> Facts:
    """All results, with all columns, into a file."""
    with tempfile.TemporaryDirectory(prefix="hf-export-") as folder, app_of(order) as app:
        order.ready()
        spent, began = cpu_seconds(), now()
        rows = app.results(NAME).write(Path(folder, f"out.{order.format}"))
        if rows != order.items:
            raise SystemExit(f"{rows} rows were exported instead of {order.items}")
        return {"seconds": now() - began, "cpu_seconds": cpu_seconds() - spent, "memory_mb": most_memory_mb()}


# Handlers -------------------------------------------------------------------------------------------------------------


def _idle(order: Order) -> Callable[[int], Handler]:
    async def idle_async(item: Any, ctx: Any) -> None:
        return None

    def idle(item: Any, ctx: Any) -> None:
        return None

    return lambda _: idle if order.kind == "sync" else idle_async


def _telling(order: Order) -> Callable[[int], Handler]:
    board = Board(order.board)

    async def tell_async(item: Any, ctx: Any) -> None:
        board.start(item.data["page"])

    def tell(item: Any, ctx: Any) -> None:
        board.start(item.data["page"])

    return lambda _: tell if order.kind == "sync" else tell_async


def _holding(order: Order) -> Callable[[int], Handler]:
    board = Board(order.board)

    async def hold_async(item: Any, ctx: Any) -> None:
        board.start(item.data["page"])
        while not board.released:
            await asyncio.sleep(0.05)
        board.end(item.data["page"])

    def hold(item: Any, ctx: Any) -> None:
        board.start(item.data["page"])
        while not board.released:
            time.sleep(0.05)
        board.end(item.data["page"])

    return lambda _: hold if order.kind == "sync" else hold_async


def _sleeping(order: Order) -> Callable[[int], Handler]:
    """Handlers that wait for something: as long as was ordered, or for 5 to 50 ms."""
    board = Board(order.board)

    def begin(item: Any, number: int) -> float:
        cell = item.data["page"] * order.stages + number - 1
        board.start(cell)
        return order.handler_ms / 1000 if order.handler_ms else random.Random(cell).uniform(0.005, 0.05)

    def stage(number: int) -> Handler:
        async def sleep_async(item: Any, ctx: Any) -> None:
            await asyncio.sleep(begin(item, number))

        def sleep(item: Any, ctx: Any) -> None:
            time.sleep(begin(item, number))

        return sleep if order.kind == "sync" else sleep_async

    return stage


if __name__ == "__main__":
    main(
        {
            "add": add,
            "drain": drain,
            "drain_some": drain_some,
            "serve": serve,
            "send": send,
            "fill": fill,
            "ask": ask,
            "export": export,
            "fill_mixture": fill_mixture,
            "browse": browse,
            "watch": tabs.watch,
        }
    )
