"""Signals that ask a worker for a stop mean nothing to the processes that its handlers fork."""

from __future__ import annotations

import os
import signal
import threading

import pytest

from holdfast.signals import STOPS, caught
from tests.support.waiting import wait_for


def ended_by(child: int) -> int:
    """The signal that ended the child, which has a while to do so."""
    try:
        return os.WTERMSIG(wait_for(lambda: os.waitpid(child, os.WNOHANG)[1], 10))
    except AssertionError:
        os.kill(child, signal.SIGKILL)
        raise


@pytest.mark.fault(22)
@pytest.mark.parametrize("number", STOPS)
def test_a_forked_child_ends_by_a_signal_though_it_runs_no_python(number):
    """A handler in Python would be called once the interpreter goes on, which it does not while it waits for a lock."""
    heard: list[int] = []
    with caught(heard.append):
        child = os.fork()
        if child == 0:
            lock = threading.Lock()
            lock.acquire()
            while True:
                lock.acquire(timeout=1000)
        os.kill(child, number)
        assert ended_by(child) == number
    assert heard == []


@pytest.mark.fault(22)
def test_a_signal_that_arrives_within_the_fork_is_not_forgotten():
    """Sent at once, it meets a child that does not know yet that it is one."""
    with caught(lambda _: None):
        for _ in range(20):
            child = os.fork()
            while child == 0:
                signal.pause()
            os.kill(child, signal.SIGTERM)
            assert ended_by(child) == signal.SIGTERM


def test_signals_are_heard_by_the_process_itself_also_after_a_fork():
    heard: list[int] = []
    before = [signal.getsignal(number) for number in STOPS]
    with caught(heard.append):
        child = os.fork()
        if child == 0:
            os._exit(0)
        os.waitpid(child, 0)
        for number in STOPS:
            os.kill(os.getpid(), number)
        wait_for(lambda: len(heard) == len(STOPS))
    assert heard == list(STOPS)
    assert [signal.getsignal(number) for number in STOPS] == before
    assert not signal.pthread_sigmask(signal.SIG_BLOCK, ()) & set(STOPS)


def test_nothing_is_caught_where_it_cannot_be_or_is_not_wanted():
    before = signal.getsignal(signal.SIGTERM)
    found = []

    def look():
        with caught(lambda _: None):
            found.append(signal.getsignal(signal.SIGTERM))

    thread = threading.Thread(target=look)
    thread.start()
    thread.join()
    with caught(lambda _: None, wanted=False):
        found.append(signal.getsignal(signal.SIGTERM))
    assert found == [before, before]
