"""What it costs to count attempts for metrics, in processor time: `python -m benchmarks.counting`.

Groups of attempts, as group commits have them, are counted as after a commit. Without metrics none of this happens.
"""

from __future__ import annotations

import random
import time
from types import SimpleNamespace
from typing import Any

from holdfast.engine.claim import Lease
from holdfast.engine.finish_leases import FinishedAttempt
from holdfast.model.states import State
from holdfast.telemetry.metrics import Metrics

GROUPS = (1, 10, 100, 1000)
ATTEMPTS = 100_000


def attempt(rng: random.Random) -> FinishedAttempt:
    lease = Lease(1, 1, 1, 1, 0, 0, "key", "{}", rng.randrange(10**6, 10**7))
    lease.ready_at = 1
    return FinishedAttempt(lease, State.DONE, took_us=rng.randrange(1, 2_000_000))


def nanoseconds(group: int, attempts: int = ATTEMPTS) -> float:
    """Per attempt, in groups of this size."""
    rng = random.Random(group)
    row = SimpleNamespace(pipeline_name="books", name="extract")
    known = SimpleNamespace(cache={"layout": SimpleNamespace(stages={1: row})})
    ended = [(1, "done", [attempt(rng) for _ in range(group)])]
    tx: Any = SimpleNamespace(store=known, ended=ended, paid=[])
    metrics, times = Metrics(), max(1, attempts // group)
    began = time.process_time_ns()
    for _ in range(times):
        metrics.committed("cycle", group, 0.001, tx)
    return (time.process_time_ns() - began) / (times * group)


if __name__ == "__main__":
    for group in GROUPS:
        print(f"{group:5} attempts per commit: {nanoseconds(group):8,.0f} ns per attempt")
