"""Two threads in the database at once, held at named points so that they really overlap."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import TypeVar

from holdfast import points
from tests.support import waiting

T = TypeVar("T")

#: No test waits this long; one that would is stuck, and says so.
STUCK_SECONDS = 40.0


def at_once(*works: Callable[[], T]) -> list[T]:
    """Run each in a thread of its own, started together; return what they returned."""
    start = threading.Barrier(len(works))

    def run(work: Callable[[], T]) -> T:
        start.wait(STUCK_SECONDS)
        return work()

    with ThreadPoolExecutor(len(works)) as pool:
        futures: list[Future[T]] = [pool.submit(run, work) for work in works]
        return [future.result(timeout=STUCK_SECONDS) for future in futures]


@contextmanager
def meeting_at(point: str, parties: int) -> Iterator[None]:
    """Hold the first `parties` threads that reach `point` until all of them are there."""
    barrier = threading.Barrier(parties)
    came = itertools.count()

    def listener(reached: str) -> None:
        if reached == point and next(came) < parties:
            barrier.wait(STUCK_SECONDS)

    with listening(listener):
        yield


@contextmanager
def held_at(point: str, until: Callable[[], bool]) -> Iterator[threading.Event]:
    """Hold the first thread that reaches `point` until a fact holds; the event tells that it is there."""
    arrived = threading.Event()

    def listener(reached: str) -> None:
        if reached == point and not arrived.is_set():
            arrived.set()
            wait_for(until)

    with listening(listener):
        yield arrived


@contextmanager
def listening(listener: points.PointListener) -> Iterator[None]:
    old = points.listen(listener)
    try:
        yield
    finally:
        points.listen(old)


def wait_for(fact: Callable[[], object]) -> None:
    """Return once the fact holds: a quick one, of threads."""
    waiting.wait_for(fact, STUCK_SECONDS, every=0.002)
