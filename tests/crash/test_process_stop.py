"""Stopping: work gets its grace, what is left is handed back with its attempt, and nobody pays for a deploy."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.support.processes import ROOT, Crew, wait_for
from tests.support.slowness import slowness
from tests.support.waiting import STUCK_SECONDS


def spent(crew: Crew, key: str, stage: str = "fetch") -> int:
    """Attempts that stage has used up; while one runs it counts."""
    return int(crew.stage(key, stage).attempts)


@pytest.mark.fault(9)
def test_a_stopped_worker_lets_short_work_end_and_hands_long_work_back_with_its_attempt(crew: Crew):
    crew.add([{"key": "short", "fetch": "sleep 0.5"}, {"key": "long", "fetch": f"until {crew.gate()}"}, *waiting(20)])
    worker = crew.start(grace=1.5, concurrency=2)
    wait_for(lambda: crew.ledger.starts("short") and crew.ledger.starts("long"))
    worker.terminate()
    asked_at = time.monotonic()
    assert worker.wait() == 0
    assert time.monotonic() - asked_at < 1.5 + 1.0 * slowness(), "long work was held on to beyond the grace"
    assert crew.stage("short", "fetch").state == "done"
    assert (crew.stage("long", "fetch").state, spent(crew, "long")) == ("pending", 0)
    assert crew.app.workers() == (), "it left without saying goodbye"
    assert crew.app.check() == []
    assert not crew.ledger.starts("waits-19"), "it went on claiming"
    assert [event.data["reason"] for event in crew.events("handed_back", "long")] == ["the worker is stopping"]
    assert len(crew.events("handed_back")) == 1, "what was never begun leaves no event"


@pytest.mark.fault(10)
def test_a_second_signal_hands_everything_back_at_once(crew: Crew):
    crew.add([{"key": f"long-{number}", "fetch": f"until {crew.gate()}"} for number in range(3)])
    worker = crew.start(grace=60)
    wait_for(lambda: len(crew.ledger.starts()) == 3)
    worker.send(signal.SIGINT)
    wait_for(lambda: crew.ledger.lines("stopping"))
    worker.send(signal.SIGINT)
    assert worker.wait() == 0
    assert {(crew.stage(f"long-{number}", "fetch").state, spent(crew, f"long-{number}")) for number in range(3)} == {
        ("pending", 0)
    }
    assert crew.app.check() == []


@pytest.mark.req("J2")
@pytest.mark.fault(10)
@pytest.mark.parametrize("point", ["store.take_leases", "commit.before", "commit.after", "store.remove_worker"])
def test_a_worker_killed_while_it_hands_back_loses_nothing(crew: Crew, point: str):
    """SIGTERM, SIGTERM, SIGKILL: as from an impatient operator, at each step of the farewell."""
    crew.add([{"key": f"long-{number}", "fetch": f"until {crew.gate()}"} for number in range(3)])
    worker = crew.start(grace=60, environment={"HOLDFAST_TEST_CRASH_AFTER_SECOND_SIGTERM": point})
    wait_for(lambda: len(crew.ledger.starts()) == 3)
    worker.terminate()
    wait_for(lambda: crew.ledger.lines("stopping"))  # two signals sent at once are one
    worker.terminate()
    assert worker.wait() == -signal.SIGKILL
    crew.gate().touch()
    crew.start()
    crew.wait_until_done()
    crew.judge()
    assert {crew.stage(f"long-{number}", "save").state for number in range(3)} == {"done"}


@pytest.mark.req("J3")
@pytest.mark.fault(9)
def test_rolling_restarts_never_exhaust_an_item(crew: Crew):
    """More deploys than attempts, each in the middle of the handler."""
    crew.add([{"key": "slow", "fetch": f"until {crew.gate()}"}])
    for number in range(4):
        worker = crew.start(f"deploy-{number}", grace=0.05)
        wait_for(lambda number=number: len(crew.ledger.starts("slow", "fetch")) == number + 1)
        worker.terminate()
        assert worker.wait() == 0
    assert {line.attempt for line in crew.ledger.starts("slow", "fetch")} == {1}
    crew.gate().touch()
    crew.start("last", drain=True).wait()
    assert (crew.stage("slow", "fetch").state, spent(crew, "slow")) == ("done", 1)
    crew.judge()


@pytest.mark.fault(9)
def test_a_stop_in_isolation_ends_the_children_and_hands_back(hire):
    crew = hire("isolated_books")
    crew.add([{"key": "long", "fetch": f"until {crew.gate()}"}])
    worker = crew.start(grace=0.2)
    [start] = wait_for(lambda: crew.ledger.starts("long"))
    assert start.pid != worker.pid
    worker.terminate()
    assert worker.wait() == 0
    wait_for(lambda: not Path(f"/proc/{start.pid}").exists())
    assert (crew.stage("long", "fetch").state, spent(crew, "long")) == ("pending", 0)


SIGNAL_INSIDE = """
import os, signal, sys, threading
from holdfast import Holdfast
from holdfast.worker import Settings
from tests.support.processes import find_pipeline

worker = Holdfast(sys.argv[1], [find_pipeline("tests.support.books:books").spec]).worker(Settings())
sent = []

def trace(frame, event, argument):
    owner = frame.f_locals.get("self")
    inside = event == "line" and isinstance(owner, threading.Event) and hasattr(owner, "_cond")
    if inside and owner._cond._lock.locked() and not sent:
        sent.append(True)
        os.kill(os.getpid(), signal.SIGTERM)
    return trace

# If nothing of the kind is ever called, an ordinary signal ends it.
threading.Timer(3, lambda: os.kill(os.getpid(), signal.SIGTERM)).start()
sys.settrace(trace)
worker.run()
os._exit(0)
"""


@pytest.mark.fault(9)
def test_a_stop_signal_is_heard_wherever_the_main_thread_is_when_it_arrives(url: str):
    """Also inside the lock of the event it waits for: a handler of signals that takes locks waits for itself."""
    process = subprocess.Popen([sys.executable, "-c", SIGNAL_INSIDE, url], cwd=ROOT, env={"PYTHONPATH": str(ROOT)})
    try:
        assert process.wait(STUCK_SECONDS) == 0
    except subprocess.TimeoutExpired:
        pytest.fail("the worker waits for itself")
    finally:
        process.kill()
        process.wait()


def waiting(count: int) -> list[str]:
    return [f"waits-{number}" for number in range(count)]
