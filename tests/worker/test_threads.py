"""Threads for sync handlers: one for what may be quick, as many as wanted for what is not."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

from holdfast import Pipeline
from holdfast.engine.claim import Lease
from holdfast.engine.finish import Finished
from holdfast.model.states import State
from holdfast.worker.call import Call, calls_of
from holdfast.worker.hand import Hand
from holdfast.worker.threads import PATIENCE_SECONDS, Threads
from tests.support.waiting import wait_for

WIDTH = 8


class Blocked:
    """Runs calls of a stage that all wait for the same thing; notes which have begun."""

    def __init__(self) -> None:
        self.go_on = threading.Event()
        self.begun: list[Call] = []
        self.reported: list[Call] = []
        self.hand = Hand(WIDTH)
        self.threads = Threads(
            self, WIDTH, self.report, lambda call: not call.is_over, lambda is_free: False, self.hand
        )  # type: ignore[arg-type]

    def run(self, call: Call, clock: Any) -> list[Finished]:
        call.started = clock()
        self.begun.append(call)
        self.go_on.wait(60)
        return []

    def report(self, call: Call, finished: list[Finished]) -> None:
        self.reported.append(call)

    def calls(self, n: int) -> list[Call]:
        pipeline = Pipeline("p")
        pipeline.stage(name="work")(lambda item, ctx: None)
        leases = [Lease(number, number, 1, 1, 0, 0, f"k{number}", "{}", 0) for number in range(n)]
        return calls_of("p", pipeline.spec.stages[0], leases, time.monotonic(), None)

    def learn(self, took_us: int) -> None:
        """Calls of the stage have taken so long."""
        lease = self.calls(1)[0].leases[0]
        self.hand.learn_from([Finished(lease, State.DONE, took_us=took_us)])


@pytest.fixture
def blocked() -> Iterator[Blocked]:
    made = Blocked()
    yield made
    made.go_on.set()
    wait_for(lambda: len(made.reported) == len(made.begun))
    made.threads.stop()


@pytest.mark.parametrize("known", ["nothing is known", "quick"])
def test_one_thread_begins_with_what_may_be_quick(blocked: Blocked, known: str):
    if known == "quick":
        blocked.learn(took_us=3)
    blocked.threads.submit(blocked.calls(20))
    blocked.threads.submit(blocked.calls(20))
    wait_for(lambda: len(blocked.begun) == 1)
    assert blocked.threads._staff.count == 1


def test_others_follow_when_it_is_seen_that_it_is_not_quick(blocked: Blocked):
    blocked.threads.submit(blocked.calls(20))
    wait_for(lambda: len(blocked.begun) == 1)
    began = blocked.begun[0].started
    blocked.threads.look(began + PATIENCE_SECONDS / 2)
    assert blocked.threads._staff.count == 1
    blocked.threads.look(began + 2 * PATIENCE_SECONDS)
    assert blocked.threads._staff.count == WIDTH
    wait_for(lambda: len(blocked.begun) == WIDTH)


def test_a_bundle_of_quick_calls_is_broken_up_behind_one_that_is_not(blocked: Blocked):
    blocked.learn(took_us=3)
    blocked.threads.submit(blocked.calls(20))
    wait_for(lambda: len(blocked.begun) == 1)
    assert blocked.threads._bundles.empty()
    blocked.threads.look(blocked.begun[0].started + 2 * PATIENCE_SECONDS)
    wait_for(lambda: len(blocked.begun) == WIDTH)


def test_what_is_known_to_be_slow_has_all_threads_at_once(blocked: Blocked):
    blocked.learn(took_us=100_000)
    blocked.threads.submit(blocked.calls(20))
    assert blocked.threads._staff.count == WIDTH
    wait_for(lambda: len(blocked.begun) == WIDTH)
