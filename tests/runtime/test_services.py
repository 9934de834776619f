"""Services beside the work: passes when they are due, again after a failure, and a last one at the end."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable

import pytest

from holdfast.errors import StoreBroken, StoreUnavailable
from holdfast.runtime.services import Scheduler, Service, ServiceThread
from tests.support.waiting import wait_for


class Noted(Service):
    """Due since a time; notes its passes."""

    retry_seconds = 0.001

    def __init__(self, name: str, due: float, passes: list[str], then: Callable[[], bool] = lambda: False) -> None:
        self.name = name
        self.due = due
        self._passes = passes
        self._then = then

    def one_pass(self) -> bool:
        self.due = time.monotonic() + 60
        self._passes.append(self.name)
        return self._then()

    def last_pass(self) -> None:
        self._passes.append(f"{self.name}, last")

    def end(self) -> None:
        self._passes.append(f"{self.name}, end")


class Failing:
    """Raises these errors, one after the other, and then nothing."""

    def __init__(self, *errors: Exception) -> None:
        self._errors = list(errors)

    def __call__(self) -> bool:
        if self._errors:
            raise self._errors.pop(0)
        return False


def never() -> bool:
    return False


def always() -> bool:
    return True


# In somebody else's thread ----------------------------------------------------------------------------------------------


def test_those_that_are_due_run_the_longest_overdue_first():
    passes: list[str] = []
    later = time.monotonic() + 60
    services = Scheduler([Noted("b", 2, passes), Noted("a", 1, passes), Noted("not yet", later, passes)])
    assert services.due == 1
    assert not services.run(never)
    assert passes == ["a", "b"]
    assert not services.run(never)
    assert passes == ["a", "b"] and services.due > time.monotonic()


def test_work_that_comes_meanwhile_waits_for_one_of_them_at_most():
    passes: list[str] = []
    services = Scheduler([Noted("a", 1, passes), Noted("b", 2, passes), Noted("c", 3, passes)])
    assert not services.run(lambda: passes == ["a"])
    assert passes == ["a"]
    assert services.due == 2


def test_what_a_service_has_found_is_claimed_before_the_next_one_runs():
    passes: list[str] = []
    services = Scheduler([Noted("a", 1, passes, always), Noted("b", 2, passes)])
    assert services.run(never)
    assert passes == ["a"]


def test_a_thread_that_always_has_something_to_do_still_runs_one_after_the_other():
    passes: list[str] = []
    services = Scheduler([Noted("a", 1, passes), Noted("b", 2, passes)])
    assert not services.run(always) and passes == ["a"]
    assert not services.run(always) and passes == ["a", "b"]


def test_none_runs_before_its_time_unless_it_is_told_to_begin():
    passes: list[str] = []
    services = Scheduler([Noted("a", 1, passes)], not_before=time.monotonic() + 60)
    services.run(never)
    assert passes == []
    services.begin()
    services.run(never)
    assert passes == ["a"]


def test_a_service_that_fails_keeps_no_other_from_its_pass(caplog: pytest.LogCaptureFixture):
    passes: list[str] = []
    wrong = Noted("wrong", 1, passes, Failing(ValueError("no"), ValueError("no")))
    right = Noted("right", 2, passes)
    services = Scheduler([wrong, right])
    assert not services.run(never)
    assert passes == ["wrong", "right"]
    assert "wrong: a pass failed and will be made again" in caplog.text
    assert wrong.due < right.due, "sooner than after a pass that was made"
    wait_for(lambda: services.run(never) or passes == ["wrong", "right", "wrong", "wrong"])


def test_trouble_with_the_database_is_raised_and_the_pass_is_due_again_soon():
    passes: list[str] = []
    service = Noted("a", 1, passes, Failing(StoreUnavailable("gone")))
    services = Scheduler([service])
    with pytest.raises(StoreUnavailable):
        services.run(never)
    due_after_failure = service.due
    wait_for(lambda: services.run(never) or passes == ["a", "a"])
    assert due_after_failure < service.due, "sooner than after a pass that was made"


# In a thread of their own -----------------------------------------------------------------------------------------------


def ended(thread: ServiceThread, *, last_pass: bool = True) -> None:
    thread.finish(last_pass=last_pass)
    thread.join()


def test_a_thread_makes_passes_then_the_last_ones_and_ends_its_services_in_reverse():
    passes: list[str] = []
    thread = ServiceThread([Noted("a", 1, passes), Noted("b", 2, passes)])
    thread.start()
    wait_for(lambda: passes == ["a", "b"])
    ended(thread)
    assert passes == ["a", "b", "a, last", "b, last", "b, end", "a, end"]


def test_without_leave_for_a_last_pass_services_only_end():
    passes: list[str] = []
    thread = ServiceThread([Noted("a", 1, passes)])
    thread.start()
    wait_for(lambda: passes == ["a"])
    ended(thread, last_pass=False)
    assert passes == ["a", "a, end"]


def test_work_that_is_over_before_the_first_pass_still_has_a_last_one():
    passes: list[str] = []
    stopped = threading.Event()
    stopped.set()
    thread = ServiceThread([Noted("a", 1, passes)], stopped=stopped)
    thread.start()
    ended(thread)
    assert passes == ["a, last", "a, end"]


def test_a_thread_that_was_never_started_releases_what_its_services_hold():
    passes: list[str] = []
    ended(ServiceThread([Noted("a", 1, passes)]))
    assert passes == ["a, end"]


def test_the_last_pass_waits_until_the_work_is_over():
    passes: list[str] = []
    stopped = threading.Event()
    thread = ServiceThread([Noted("a", 1, passes)], stopped=stopped)
    thread.start()
    wait_for(lambda: passes == ["a"])
    stopped.set()
    thread._thread.join(0.05)
    assert passes == ["a"] and thread._thread.is_alive()
    ended(thread)
    assert passes == ["a", "a, last", "a, end"]


def test_what_a_thread_finds_is_reported():
    found = threading.Event()
    thread = ServiceThread([Noted("a", 1, [], always)], on_found=found.set)
    thread.start()
    wait_for(found.is_set)
    ended(thread)


@pytest.mark.parametrize("error", [StoreUnavailable("gone"), ValueError("wrong"), StoreBroken("damaged")])
def test_a_thread_outlives_any_error_of_a_pass(error: Exception):
    passes: list[str] = []
    broken: list[StoreBroken] = []
    thread = ServiceThread([Noted("a", 1, passes, Failing(error))], on_broken=broken.append)
    thread.start()
    wait_for(lambda: passes == ["a", "a"])
    ended(thread)
    assert broken == ([error] if isinstance(error, StoreBroken) else [])


@pytest.mark.parametrize("error", [StoreUnavailable("gone"), ValueError("wrong")])
def test_a_last_pass_that_fails_is_logged_and_keeps_no_other_from_its_own(
    error: Exception, caplog: pytest.LogCaptureFixture
):
    passes: list[str] = []
    first = Noted("a", time.monotonic() + 60, passes)
    first.last_pass = Failing(error)  # type: ignore[assignment]
    thread = ServiceThread([first, Noted("b", time.monotonic() + 60, passes)])
    thread.start()
    with caplog.at_level(logging.WARNING):
        ended(thread)
    assert passes == ["b, last", "b, end", "a, end"]
    assert "a: the last pass" in caplog.text


def test_a_process_waits_for_a_service_that_hangs_only_as_long_as_its_last_pass_may_take():
    hangs, entered = threading.Event(), threading.Event()
    service = Noted("a", 1, [], lambda: entered.set() or hangs.wait(60))
    service.last_pass_seconds = 0.05
    thread = ServiceThread([service])
    thread.start()
    wait_for(entered.is_set)
    ended(thread)
    assert thread._thread.is_alive()
    hangs.set()
    thread._thread.join()
