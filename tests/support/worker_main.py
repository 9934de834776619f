"""A worker as a process of its own, for tests."""

from __future__ import annotations

import argparse
import importlib
import logging
import os
import random
import resource
import signal
import threading
import time

from holdfast import Holdfast, Pipeline, points, testing
from holdfast.runtime import process_identity as machine
from holdfast.worker import Settings, Worker
from holdfast.worker.background.heartbeat import Heartbeat
from tests.support.forking import die_with_parent

PARENT_VARIABLE = "HOLDFAST_TEST_PARENT"


def main() -> None:
    given = _arguments()
    # A test run that is killed must not leave workers behind, also not those that were still starting.
    die_with_parent()
    if os.environ.get(PARENT_VARIABLE, str(os.getppid())) != str(os.getppid()):
        return
    logging.basicConfig(level=logging.WARNING, format="%(levelname)s %(name)s: %(message)s")
    limit = os.environ.get("HOLDFAST_TEST_MEMORY")
    if limit:
        resource.setrlimit(resource.RLIMIT_AS, (int(limit), int(limit)))
    if given.far:
        machine.this_host = lambda: f"the machine of {given.name} {os.getpid()}"
    if os.environ.get("HOLDFAST_TEST_SLOW_HEART"):
        _slow_the_heart(given.lease)
    app = Holdfast(given.url, [find_pipeline(given.pipeline).spec])
    settings = Settings(
        concurrency=given.concurrency,
        lease_seconds=given.lease,
        grace_seconds=given.grace,
        poll_seconds=given.poll,
        name=given.name,
        stages=tuple(given.stages.split()),
    )
    worker = app.worker(settings)
    testing.crash_from_environment()
    if given.freeze_at:
        points.listen(_freezer(*given.freeze_at.split()))
    late = os.environ.get("HOLDFAST_TEST_CRASH_AFTER_SECOND_SIGTERM")
    if late:
        points.listen(_late_killer(worker, late))
    worker.run(until_drained=given.drain)
    app.close()


def find_pipeline(name: str) -> Pipeline:
    """The pipeline that `module:attribute` names."""
    module, _, attribute = name.partition(":")
    found = getattr(importlib.import_module(module), attribute)
    assert isinstance(found, Pipeline)
    return found


def _freezer(first: str, second: str, nth: str) -> points.PointListener:
    """Stop this process where a thread reaches `second` after `first`, the n-th time it does."""
    passed = threading.local()
    times = 0

    def listener(point: str) -> None:
        nonlocal times
        if point == first:
            passed.first = True
        elif point == second and getattr(passed, "first", False):
            passed.first = False
            times += 1
            if times == int(nth):
                os.kill(os.getpid(), signal.SIGSTOP)

    return listener


def _slow_the_heart(lease: float) -> None:
    """Let beats follow each other at about the length of a lease: every one of them may come too late."""
    beat = Heartbeat.one_pass
    rng = random.Random(os.getpid())
    due = 0.0

    def one_pass(pulse: Heartbeat) -> bool:
        nonlocal due
        if time.monotonic() < due:
            return True
        due = time.monotonic() + lease * rng.uniform(0.9, 1.1)
        return beat(pulse)

    Heartbeat.one_pass = one_pass  # type: ignore[method-assign]


def _late_killer(worker: Worker, point: str) -> points.PointListener:
    """Kill this process where it reaches `point` after it was asked twice to stop."""

    def listener(reached: str) -> None:
        if reached == point and worker._stop_requests > 1:
            os.kill(os.getpid(), signal.SIGKILL)

    return listener


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    for name, kind in {
        "url": str,
        "pipeline": str,
        "name": str,
        "stages": str,
        "freeze-at": str,
        "lease": float,
        "grace": float,
        "poll": float,
        "concurrency": int,
    }.items():
        parser.add_argument(f"--{name}", type=kind, required=True)
    parser.add_argument("--drain", action="store_true")
    parser.add_argument("--far", action="store_true")
    return parser.parse_args()


if __name__ == "__main__":
    main()
