"""What `benchmarks.upgrading` has the version before do: make a store, and go on using it. Runs on that version's code.

    python -P -m benchmarks.old_store make URL
    python -P -m benchmarks.old_store write URL FILE      # adds items until FILE is there, and prints how long that took
    python -P -m benchmarks.old_store read URL FILE       # the same, asking how far the items are

Only names that the version before and today's have in common.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any

from holdfast import Holdfast, Pipeline, RetryLater
from holdfast.worker import Settings

#: The items that are multiplied, in the order of their numbers: done, to be tried again with a paid answer, and waiting.
SEEDS = ("done", "later", "waiting")
#: An answer as models give it: a few sentences.
ANSWER = "It was the best of times, it was the worst of times. " * 10
LATER_SECONDS = 100_000_000
#: Between two calls, so that these do not become the load.
PAUSE_SECONDS = 0.01


def pipeline() -> Pipeline:
    books = Pipeline("books")

    @books.stage()
    def extract(item: Any, ctx: Any) -> Any:
        answer = ctx.once("answer", lambda: {"text": ANSWER}, cost="0.05")
        return RetryLater(after=LATER_SECONDS) if item.key == "later" else answer

    return books


def make(url: str) -> None:
    with Holdfast(url, [pipeline().spec]) as app:
        app.upgrade()
        app.add("books", SEEDS[:2])
        worker = app.worker(Settings(poll_seconds=0.05))

        def look() -> None:
            # A list of dictionaries in this version.
            pipelines: Any = app.status()
            if pipelines[0]["stages"][0]["states"] == {"done": 1, "retry_later": 1}:
                worker.stop()

        worker.run(on_tick=look, tick_seconds=0.05)
        app.add("books", SEEDS[2:])


def measure(url: str, end: Path, what: str) -> None:
    """Call again and again, and print the length of each call with the time at which it began."""
    with Holdfast(url, [pipeline().spec]) as app:
        numbers = count()
        calls: dict[str, Callable[[], Any]] = {
            "write": lambda: app.add("books", [f"new-{next(numbers)}"]),
            "read": app.status,
        }
        calls[what]()
        print("ready", flush=True)
        taken: list[tuple[float, float]] = []
        while not end.exists():
            began = time.monotonic()
            calls[what]()
            taken.append((began, time.monotonic() - began))
            time.sleep(PAUSE_SECONDS)
        json.dump(taken, sys.stdout)


if __name__ == "__main__":
    if sys.argv[1] == "make":
        make(sys.argv[2])
    else:
        measure(sys.argv[2], Path(sys.argv[3]), sys.argv[1])
