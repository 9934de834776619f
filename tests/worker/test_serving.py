"""What a worker does for all, between its own work: services, each when it is due."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable

import pytest

from holdfast.worker.background.upkeep import Services
from holdfast.worker.commit.committer import Committer
from holdfast.worker.commit.finished_queue import FinishedQueue


class Service:
    """Due since a time; notes its passes."""

    def __init__(self, name: str, due: float, passes: list[str], then: Callable[[], bool] = lambda: False) -> None:
        self.name = name
        self.due = due
        self._passes = passes
        self._then = then

    def one_pass(self) -> bool:
        self.due = time.monotonic() + 60
        self._passes.append(self.name)
        return self._then()


def all_of(*services: Service) -> Services:
    made = Services(services, 60.0)
    made.begin()
    return made


def nobody_calls() -> bool:
    return False


def somebody_calls() -> bool:
    return True


def test_those_that_are_due_run_the_longest_waiting_first():
    passes: list[str] = []
    later = time.monotonic() + 60
    services = all_of(Service("b", 2, passes), Service("a", 1, passes), Service("not yet", later, passes))
    assert services.due == 1
    assert not services.run(nobody_calls)
    assert passes == ["a", "b"]
    assert not services.run(nobody_calls)
    assert passes == ["a", "b"] and services.due > time.monotonic()


def test_work_that_comes_meanwhile_waits_for_one_of_them_at_most():
    passes: list[str] = []
    services = all_of(Service("a", 1, passes), Service("b", 2, passes), Service("c", 3, passes))
    assert not services.run(lambda: passes == ["a"])
    assert passes == ["a"]
    assert services.due == 2


def test_what_a_service_has_found_is_claimed_before_the_next_one_runs():
    passes: list[str] = []
    services = all_of(Service("a", 1, passes, lambda: True), Service("b", 2, passes))
    assert services.run(nobody_calls)
    assert passes == ["a"]


def test_a_worker_that_always_has_something_to_do_still_serves_one_after_the_other():
    passes: list[str] = []
    services = all_of(Service("a", 1, passes), Service("b", 2, passes))
    assert not services.run(somebody_calls) and passes == ["a"]
    assert not services.run(somebody_calls) and passes == ["a", "b"]


@pytest.mark.parametrize("poll_seconds", [60.0, 0.0])
def test_none_runs_before_there_was_a_claim_or_a_poll_has_passed(poll_seconds: float):
    passes: list[str] = []
    services = Services([Service("a", 1, passes)], poll_seconds)
    services.run(nobody_calls)
    assert bool(passes) == (poll_seconds == 0)
    services.begin()
    services.run(nobody_calls)
    assert passes == ["a"]


def test_news_calls_for_whoever_serves():
    committer = Committer.__new__(Committer)
    committer._finished, committer._told, committer._news, committer.idle = FinishedQueue(), deque(), False, True
    assert not committer._is_called()
    committer.news()
    assert committer._is_called() and committer._finished._bell.is_set()
