"""Workers that fall silent and come back: whatever they still say about work that others took over changes nothing."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from datetime import datetime
from itertools import pairwise

import pytest

from tests.support.processes import LEASE_SECONDS, POLL_SECONDS, RECOVERY_SECONDS, Crew, WorkerProcess, wait_for
from tests.support.slowness import slowness

SLACK_SECONDS = 1.0


def take_over(crew: Crew, script: str) -> tuple[WorkerProcess, WorkerProcess]:
    """A worker begins an attempt and is frozen; another takes over. Returns the frozen one and the other."""
    crew.add([{"key": "page", "fetch": script}])
    frozen = crew.start("frozen", grace=0.2)
    wait_for(lambda: crew.ledger.starts("page"))
    other = crew.start("other")
    frozen.freeze()
    wait_for(lambda: len(crew.ledger.starts("page", "fetch")) == 2)
    return frozen, other


def is_back(crew: Crew, worker: WorkerProcess) -> None:
    """Wait until the thawed worker has heard that it was declared dead, and goes on under another number."""
    worker.thaw()
    wait_for(lambda: crew.is_known(worker))


@pytest.mark.req("J1", "J2")
@pytest.mark.fault(6)
def test_a_result_that_comes_after_the_work_was_taken_over_is_refused(crew: Crew):
    frozen, other = take_over(crew, f"once:until {crew.gate()}")
    crew.wait_until_done()
    before = crew.app.show("page").stages
    crew.gate().touch()
    is_back(crew, frozen)
    [lost] = wait_for(lambda: crew.events("lease_lost", "page"))
    assert (lost.data["attempt"], lost.data["refused"]) == (1, "done")
    assert len(crew.ledger.ends("page", "fetch")) == 2
    assert crew.app.show("page").stages == before
    assert "frozen was declared dead" in frozen.said
    # It is as good a worker as any again.
    other.kill()
    crew.add(["next"])
    crew.wait_until_done()
    assert {line.pid for line in crew.ledger.starts("next")} == {frozen.pid}
    crew.judge()


@pytest.mark.req("J3")
@pytest.mark.fault(7)
def test_a_failure_that_comes_after_the_work_was_taken_over_counts_for_nothing(crew: Crew):
    """No retry is scheduled, no attempt is added, nothing is exhausted."""
    frozen, _ = take_over(crew, f"once:until {crew.gate()}; once:raise permanent")
    crew.wait_until_done()
    before = crew.app.show("page").stages
    crew.gate().touch()
    is_back(crew, frozen)
    [lost] = wait_for(lambda: crew.events("lease_lost", "page"))
    assert lost.data["refused"] == "failed"
    assert crew.app.show("page").stages == before
    assert crew.events("attempt_failed") == crew.events("failed") == ()
    crew.judge()


@pytest.mark.req("D1")
@pytest.mark.fault(8)
def test_a_late_heartbeat_and_a_late_release_leave_the_new_owner_in_peace(crew: Crew):
    frozen, _ = take_over(crew, f"until {crew.gate()}")
    is_back(crew, frozen)
    frozen.terminate()
    frozen.wait()
    [lost] = crew.events("lease_lost", "page")
    assert lost.data["refused"] == "pending"
    stage = crew.stage("page", "fetch")
    assert (stage.state, stage.attempts) == ("in_progress", 2)
    crew.gate().touch()
    crew.wait_until_done()
    assert crew.stage("page", "fetch").attempts == 2
    assert crew.events("handed_back") == ()
    crew.judge()


@pytest.mark.req("J2")
@pytest.mark.fault(6)
def test_work_of_a_frozen_worker_runs_elsewhere_within_two_leases_and_a_poll(crew: Crew):
    crew.add([{"key": "page", "fetch": "once:sleep 60"}])
    frozen = crew.start("frozen")
    wait_for(lambda: crew.ledger.starts("page"))
    crew.start("other")
    frozen.freeze()
    frozen_at = time.monotonic()
    crew.wait_until_done()
    again = crew.ledger.starts("page", "fetch")[1].at - frozen_at
    assert 0.5 * LEASE_SECONDS < again < RECOVERY_SECONDS + SLACK_SECONDS * slowness()
    crew.judge()


@pytest.mark.req("J2")
@pytest.mark.fault(6)
@pytest.mark.parametrize("database", ["postgres"])  # on SQLite a process frozen in the lock stops all: fault 41
def test_a_worker_frozen_in_the_middle_of_its_heartbeat_does_not_hold_up_the_others(crew: Crew):
    """It keeps the lock on its own row in the database, for as long as it is frozen."""
    crew.add([{"key": "page", "fetch": "once:sleep 60"}])
    frozen = crew.start("frozen", freeze_at="store.beat commit.before 6", far=True)
    wait_for(lambda: crew.ledger.starts("page"))
    crew.start("other")
    wait_for(lambda: frozen.is_frozen)
    frozen_at = time.monotonic()
    crew.add(f"more-{number}" for number in range(5))
    crew.wait_until_done()
    assert crew.ledger.starts("page", "fetch")[1].at - frozen_at < RECOVERY_SECONDS + SLACK_SECONDS * slowness()
    last = max(line.at for line in crew.ledger.ends(stage="save") if line.key != "page")
    assert last - frozen_at < SLACK_SECONDS * slowness()
    crew.judge()


@pytest.mark.fault(6)
@pytest.mark.parametrize("database", ["postgres"])  # on SQLite a process frozen in the lock stops all: fault 41
def test_a_worker_can_start_while_another_is_frozen_in_a_transaction(crew: Crew):
    """Registering a pipeline that is known already keeps nobody out, and is kept out by nobody."""
    frozen = crew.start("frozen", freeze_at="store.beat commit.before 2", far=True)
    wait_for(lambda: frozen.is_frozen)
    started_at = time.monotonic()
    crew.start("other")
    assert time.monotonic() - started_at < 5.0 * slowness()


@pytest.mark.fault(53)
def test_after_a_sleep_of_the_whole_machine_everyone_goes_on_where_they_were(crew: Crew):
    """Five leases pass unseen by anyone. Nobody may call the others dead for it, for they slept as well."""
    crew.add([{"key": f"page-{number}", "fetch": f"until {crew.gate()}"} for number in range(9)])
    workers = [crew.start(f"w{number}", concurrency=3, ready=False) for number in range(3)]
    wait_for(lambda: len(crew.ledger.starts()) == 9)
    # Not while one of them is starting up: it has not been awake for a lease yet.
    wait_for(lambda: all(crew.is_known(worker) for worker in workers))
    for worker in workers:
        worker.freeze()
    time.sleep(5 * LEASE_SECONDS)  # the fault itself: a machine asleep
    crew.gate().touch()
    for worker in workers:
        worker.thaw()
    crew.wait_until_done()
    crew.judge()
    assert crew.events("worker_died") == ()
    assert {crew.stage(f"page-{number}", "fetch").attempts for number in range(9)} == {1}


@pytest.mark.req("J1", "J2")
@pytest.mark.fault(20)
def test_work_that_ends_just_as_it_is_taken_over_is_completed_once(hire: Callable[[str], Crew]):
    """Handlers as long as a lease in workers whose hearts beat about once per lease: they end as they are taken over."""
    crew = hire("patient_books")
    lease, rng = 0.5, random.Random(20)
    crew.start("healthy", lease=lease, concurrency=2)
    for number in range(2):
        crew.start(f"weak-{number}", lease=lease, environment={"HOLDFAST_TEST_SLOW_HEART": "1"}, ready=False)
    count = 0

    def raced() -> bool:
        nonlocal count
        if len(crew.ledger.ends(stage="fetch")) >= count - 8:
            crew.add(
                {"key": f"page-{number}", "fetch": f"sleep {lease * rng.uniform(0.9, 1.1)}"}
                for number in range(count, count + 8)
            )
            count += 8
        return len(crew.events("lease_expired")) >= 6

    wait_for(raced)
    for worker in crew.workers[1:]:
        worker.kill()
    crew.wait_until_done()
    crew.judge()
    assert crew.app.status().pipelines[0].stages[2].states == {"done": count}


# Blocking the process from inside -------------------------------------------------------------------------------------


@pytest.mark.req("D1")
@pytest.mark.fault(15)
def test_the_heart_beats_on_while_a_handler_blocks_the_event_loop(hire: Callable[[str], Crew]):
    crew = hire("async_books")
    crew.start("one", ready=False)
    crew.start("other")
    blocking = {"key": "page", "fetch": f"sleep {3.2 * LEASE_SECONDS}"}
    crew.add([blocking, *({"key": f"page-{number}", "fetch": "rest 0.1"} for number in range(10))])
    [start] = wait_for(lambda: crew.ledger.starts("page"))
    beats: set[datetime] = set()

    def ended() -> bool:
        beats.update(one.heartbeat_at for one in crew.app.workers() if one.process == str(start.pid))
        return bool(crew.ledger.ends("page", "fetch"))

    wait_for(ended)
    gaps = [(later - earlier).total_seconds() for earlier, later in pairwise(sorted(beats))]
    assert len(gaps) >= 6, "three leases are nine beats"
    assert max(gaps) < LEASE_SECONDS
    crew.wait_until_done()
    assert crew.events("worker_died") == crew.events("lease_lost") == ()
    assert len(crew.ledger.starts("page", "fetch")) == 1
    crew.judge()


@pytest.mark.fault(16)
def test_a_call_that_holds_the_interpreter_for_two_leases_is_repeated_once_and_reported(crew: Crew):
    """No thread of the process can beat: another worker takes over, in a process that may be held without harm."""
    workers = [crew.start("one", ready=False), crew.start("other")]
    wait_for(lambda: all(crew.is_known(worker) for worker in workers))
    crew.add([{"key": "page", "fetch": f"hold {2.8 * LEASE_SECONDS}"}])
    crew.wait_until_done()
    wait_for(lambda: len(crew.ledger.ends("page", "fetch")) == 2)
    wait_for(lambda: crew.events("lease_lost", "page"))
    assert [line.attempt for line in crew.ledger.starts("page", "fetch")] == [1, 2]
    assert len(crew.events("worker_died")) == 1
    assert all(worker.is_alive for worker in workers)
    crew.judge()


@pytest.mark.req("D1")
@pytest.mark.fault(16)
def test_a_worker_alone_that_held_its_own_interpreter_finishes_what_it_began(crew: Crew):
    """Nobody took over while it was silent: its lease still stands, and so does its result."""
    crew.add([{"key": "page", "fetch": f"hold {2.5 * LEASE_SECONDS}"}])
    crew.start("held", poll=POLL_SECONDS)
    crew.wait_until_done()
    assert len(crew.ledger.starts("page", "fetch")) == 1
    crew.judge()
