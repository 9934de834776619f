"""One item at a time to an idle worker, and how long it took until its handler began. Standard library only."""

from __future__ import annotations

import random
import time
from collections.abc import Callable

from benchmarks.board import Board, now, wait_until
from benchmarks.child import Facts, Order

#: The first ones open connections and plan statements.
WARM_UP = 5
#: Between two items, so that the worker is idle again, at no fixed point of its polling.
PAUSE_SECONDS = (0.02, 0.08)


def send_each(order: Order, add_one: Callable[[int], object]) -> Facts:
    """Seconds from the call that adds an item to the beginning of its handler, for each item."""
    board = Board(order.board)
    pauses = random.Random(order.items)
    taken = []
    for number in range(order.items):
        time.sleep(pauses.uniform(*PAUSE_SECONDS))
        sent = now()
        add_one(number)
        if not wait_until(lambda n=number: bool(board.starts[n]), 30, every=0.0005):  # type: ignore[misc]
            raise SystemExit(f"item {number} had not begun after 30 seconds")
        taken.append(board.began[number] - sent)
    return {"latencies": taken[WARM_UP:]}
