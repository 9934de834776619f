"""Threads for sync handlers: one for what may be quick, as many as wanted for what is not."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from holdfast import Pipeline
from holdfast.engine.claim import Lease
from holdfast.engine.finish_leases import FinishedAttempt
from holdfast.model.states import State
from holdfast.runtime.call import CallOwner
from holdfast.runtime.thread_pool import PATIENCE_SECONDS, SLOW_SECONDS, ThreadPool
from holdfast.worker.call import StageCall, calls_of
from holdfast.worker.commit.prefetch import InHand
from tests.support.waiting import wait_for

WIDTH = 8


class Blocked:
    """Runs calls of a stage that all wait for the same thing; notes which have begun."""

    def __init__(self) -> None:
        self.go_on = threading.Event()
        self.begun: list[StageCall] = []
        self.reported: list[StageCall] = []
        self.errors: list[BaseException] = []
        self.hand = InHand(WIDTH)
        owner = CallOwner(WIDTH, self.report, lambda call: not call.is_over)
        self.threads = ThreadPool(self, owner, self.hand)

    def run(self, call: StageCall, clock: Any) -> list[FinishedAttempt]:
        call.started = clock()
        self.begun.append(call)
        self.go_on.wait(60)
        return []

    def raised(self, call: StageCall, error: BaseException) -> list[FinishedAttempt]:
        self.errors.append(error)
        return []

    def report(self, call: StageCall, finished: list[FinishedAttempt]) -> None:
        self.reported.append(call)

    def calls(self, n: int, **stage: Any) -> list[StageCall]:
        pipeline = Pipeline("p")
        pipeline.stage(name="work", **stage)(lambda item, ctx: None)
        leases = [Lease(number, number, 1, 1, 0, 0, f"k{number}", "{}", 0) for number in range(n)]
        return calls_of("p", pipeline.spec.stages[0], leases, time.monotonic(), None)

    def learn(self, took_us: int) -> None:
        """Calls of the stage have taken so long."""
        lease = self.calls(1)[0].leases[0]
        self.hand.learn_from([FinishedAttempt(lease, State.DONE, took_us=took_us)])


@pytest.fixture
def blocked() -> Iterator[Blocked]:
    made = Blocked()
    yield made
    made.go_on.set()
    wait_for(lambda: len(made.reported) >= len(made.begun))
    made.threads.stop()
    assert made.threads._threads <= WIDTH


@pytest.mark.parametrize("known", ["nothing is known", "quick"])
def test_one_thread_begins_with_what_may_be_quick(blocked: Blocked, known: str):
    if known == "quick":
        blocked.learn(took_us=3)
    blocked.threads.submit(blocked.calls(20))
    blocked.threads.submit(blocked.calls(20))
    wait_for(lambda: len(blocked.begun) == 1)
    assert blocked.threads._threads == 1


def test_others_follow_when_it_is_seen_that_it_is_not_quick(blocked: Blocked):
    blocked.threads.submit(blocked.calls(20))
    wait_for(lambda: len(blocked.begun) == 1)
    began = blocked.begun[0].started
    blocked.threads.look(began + PATIENCE_SECONDS / 2)
    assert blocked.threads._threads == 1
    blocked.threads.look(began + 2 * PATIENCE_SECONDS)
    assert blocked.threads._threads == WIDTH
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
    assert blocked.threads._threads == WIDTH
    wait_for(lambda: len(blocked.begun) == WIDTH)


def test_a_batch_may_be_slow_however_quick_its_items_are(blocked: Blocked):
    blocked.learn(took_us=50)
    blocked.threads.submit(blocked.calls(2000, batch=100))
    wait_for(lambda: len(blocked.begun) == WIDTH)


def test_others_follow_when_the_stage_turns_out_not_to_be_quick(blocked: Blocked):
    """Calls of a few milliseconds, of which no single one is worth another thread."""
    blocked.threads.submit(blocked.calls(20))
    wait_for(lambda: len(blocked.begun) == 1)
    blocked.learn(took_us=4000)
    blocked.threads.look(blocked.begun[0].started + PATIENCE_SECONDS / 2)
    wait_for(lambda: len(blocked.begun) == WIDTH)


def test_a_call_that_was_slow_has_others_begin_behind_it(blocked: Blocked, monkeypatch: pytest.MonkeyPatch):
    run = blocked.run

    def first_ends(call: StageCall, clock: Any) -> list[FinishedAttempt]:
        if blocked.begun:
            return run(call, clock)
        blocked.begun.append(call)
        call.started = clock() - 2 * SLOW_SECONDS
        return []

    monkeypatch.setattr(blocked, "run", first_ends)
    blocked.threads.submit(blocked.calls(20))
    wait_for(lambda: len(blocked.begun) == 1 + WIDTH)


@pytest.mark.parametrize(
    ("took_us", "quick"),
    [([3] * 100, True), ([3] * 98 + [9000] * 2, True), ([3] * 70 + [4000] * 30, False), ([3] * 40 + [200] * 60, False)],
    ids=["all", "but for two", "but for a third", "but for most"],
)
def test_a_stage_is_quick_if_most_of_its_calls_are_and_the_others_are_few(
    blocked: Blocked, took_us: list[int], quick: bool
):
    lease = blocked.calls(1)[0].leases[0]
    blocked.hand.learn_from([FinishedAttempt(lease, State.DONE, took_us=one) for one in took_us])
    assert blocked.hand.is_quick(lease.stage) == blocked.hand.may_be_quick(lease.stage) == quick


def test_a_call_that_is_given_up_early_leaves_its_bundle_to_others(blocked: Blocked):
    blocked.learn(took_us=3)
    blocked.threads.submit(blocked.calls(3, timeout=0.004))
    wait_for(lambda: len(blocked.begun) == 1)
    blocked.threads.look(blocked.begun[0].started + 0.006)
    assert blocked.reported == blocked.begun[:1]
    wait_for(lambda: len(blocked.begun) == 3)


def test_a_thread_that_something_ends_from_outside_is_replaced(blocked: Blocked):
    """Some libraries throw exceptions into threads, and may be late."""
    blocked.go_on.set()
    blocked.learn(took_us=3)
    calls = blocked.calls(5)
    owner = blocked.threads._owner
    thrown = [KeyboardInterrupt("late")]

    def may_start(call: StageCall) -> bool:
        if call is calls[2] and thrown:
            raise thrown.pop()
        return owner.may_start(call)

    blocked.threads._owner = replace(owner, may_start=may_start)
    blocked.threads.submit(calls)
    wait_for(lambda: set(blocked.reported) == set(calls))
    assert [str(error) for error in blocked.errors] == ["late"]
    assert blocked.threads._threads == 1


def test_who_has_something_to_run_is_not_free_for_something_else(blocked: Blocked):
    assert blocked.threads._is_free()
    blocked.threads._bundles.put(deque(blocked.calls(1)))
    assert not blocked.threads._is_free()
    blocked.threads._bundles.get()
