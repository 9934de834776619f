"""What a worker does for all, between its own work: services, each when it is due."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable

from holdfast.engine.claim import Lease
from holdfast.engine.finish import Finished
from holdfast.model.states import State
from holdfast.worker.committer import Committer
from holdfast.worker.inbox import Inbox


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


def committer_with(*services: Service) -> Committer:
    """A committer, as far as services go."""
    committer = Committer.__new__(Committer)
    committer._services, committer._opening_until = services, 0.0
    committer._inbox, committer._told, committer._news, committer.idle = Inbox(), deque(), False, True
    return committer


def test_those_that_are_due_run_the_longest_waiting_first():
    passes: list[str] = []
    later = time.monotonic() + 60
    committer = committer_with(Service("b", 2, passes), Service("a", 1, passes), Service("not yet", later, passes))
    assert not committer._serve()
    assert passes == ["a", "b"]
    assert not committer._serve()
    assert passes == ["a", "b"]


def test_work_that_comes_meanwhile_waits_for_one_of_them_at_most():
    passes: list[str] = []

    def news() -> bool:
        committer.news()
        return False

    committer = committer_with(Service("a", 1, passes, news), Service("b", 2, passes), Service("c", 3, passes))
    assert not committer._serve()
    assert passes == ["a"]
    assert committer._inbox._bell.is_set()


def test_what_a_service_has_found_is_claimed_before_the_next_one_runs():
    passes: list[str] = []
    committer = committer_with(Service("a", 1, passes, lambda: True), Service("b", 2, passes))
    assert committer._serve()
    assert passes == ["a"]


def test_a_worker_that_always_has_something_to_do_still_serves_one_after_the_other():
    passes: list[str] = []
    committer = committer_with(Service("a", 1, passes), Service("b", 2, passes))
    committer._inbox.put([Finished(Lease(1, 1, 1, 1, 0, 0, "k", "{}", 0), State.DONE)], quietly=False)
    assert not committer._serve() and passes == ["a"]
    assert not committer._serve() and passes == ["a", "b"]
