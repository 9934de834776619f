"""Workers killed at any moment: nothing is lost, no stage is completed twice, and the work goes on in time."""

from __future__ import annotations

import random
import signal
import time

import pytest

from tests.support.processes import LEASE_SECONDS, RECOVERY_SECONDS, Crew, wait_for
from tests.support.slowness import slowness

#: For a machine that has more to do: process starts, other tests.
SLACK_SECONDS = 1.0


def pages(count: int, **acts: str) -> list[dict[str, str]]:
    return [{"key": f"page-{number:03}", **acts} for number in range(count)]


@pytest.mark.req("J1", "J2", "J3")
@pytest.mark.fault(1)
def test_workers_killed_at_random_lose_nothing_and_complete_nothing_twice(hire):
    """Ten kills among three workers, each at a random moment; every victim is replaced."""
    rng = random.Random(20_26)
    crew = hire("patient_books")
    crew.add(pages(100, fetch="sleep 0.02", extract="sleep 0.03", save="sleep 0.01"))
    workers = [crew.start(f"w{number}", ready=False) for number in range(3)]
    kills = 0
    while kills < 10:
        before = len(crew.ledger.ends())
        # At a random point of the progress, not of the time: a slow machine kills as well.
        wait_for(lambda before=before: len(crew.ledger.ends()) >= before + rng.randrange(1, 30) or crew.is_done())
        victim = rng.randrange(3)
        workers[victim].kill()
        kills += 1
        crew.add([{"key": f"more-{kills}-{number}", "fetch": "sleep 0.02"} for number in range(10)])
        workers[victim] = crew.start(f"w{victim}", ready=False)
    crew.wait_until_done(60)
    crew.judge()
    assert {crew.stage(f"page-{number:03}", "save").state for number in range(100)} == {"done"}
    died = {event.data["name"] for event in crew.events("worker_died")}
    assert died <= {"w0", "w1", "w2"} and died


@pytest.mark.req("J2")
@pytest.mark.fault(3)
def test_a_stage_whose_last_transaction_was_cut_off_runs_once_more(crew: Crew):
    """Killed between the outcome's insert and the commit: nothing of it is there, and the attempt counts."""
    crew.add(pages(1))
    victim = crew.start("victim", crash_at="store.insert_routine:1", ready=False)
    assert victim.wait(10) == -signal.SIGKILL
    assert crew.stage("page-000", "fetch").state == "in_progress"
    crew.start("heir")
    crew.wait_until_done()
    assert [line.attempt for line in crew.ledger.starts("page-000", "fetch")] == [1, 2]
    assert crew.stage("page-000", "fetch").attempts == 2
    crew.judge()


@pytest.mark.fault(4)
def test_a_stage_that_was_committed_before_the_kill_does_not_run_again(crew: Crew):
    """Killed right after the commit that completed it: the next stage goes on, in time."""
    crew.add(pages(1, extract=f"until {crew.gate()}"))
    victim = crew.start("victim", stages="fetch")
    wait_for(lambda: crew.stage("page-000", "fetch").state == "done")
    victim.kill()
    crew.gate().touch()
    crew.start("heir")
    crew.wait_until_done()
    assert len(crew.ledger.starts("page-000", "fetch")) == 1
    assert crew.ledger.starts("page-000", "extract")[0].attempt == 1
    crew.judge()


@pytest.mark.req("J2")
@pytest.mark.fault(5)
def test_after_the_whole_machine_died_workers_of_the_same_names_go_on(crew: Crew):
    """Everyone is killed at once and started again under the same names: they are other workers, with no old rights."""
    crew.add(pages(60, fetch="sleep 0.02", extract="sleep 0.1"))
    first = [crew.start(f"w{number}", ready=False) for number in range(3)]
    wait_for(lambda: len({line.pid for line in crew.ledger.ends()}) == 3)
    known = {worker.id for worker in crew.app.workers()}
    for worker in first:
        worker.send(signal.SIGKILL)
    for worker in first:
        worker.wait()
    died_at = time.monotonic()
    held = [key for (key, _), state in crew.states().items() if state == "in_progress"]
    assert held
    for number in range(3):
        crew.start(f"w{number}", ready=False)
    wait_for(lambda: any(crew.is_known(worker) for worker in crew.workers[3:]))
    up_at = time.monotonic()
    crew.wait_until_done()
    assert not known & {worker.id for worker in crew.app.workers()}
    for key in set(held):
        again = min(line.at for line in crew.ledger.starts(key) if line.at > died_at)
        assert again < up_at + RECOVERY_SECONDS + SLACK_SECONDS * slowness()
    crew.judge()


@pytest.mark.req("J2", "D1")
@pytest.mark.fault(1)
@pytest.mark.parametrize("far", [False, True], ids=["beside it", "on another machine"])
def test_work_of_a_killed_worker_runs_again_within_two_leases_and_a_poll(crew: Crew, far: bool):
    """Beside it the process is seen to be gone; from another machine only its silence tells."""
    crew.add(pages(4, fetch="once:sleep 60"))
    victim = crew.start("victim", far=far)
    wait_for(lambda: len(crew.ledger.starts()) == 4)
    crew.start("heir", far=far)
    victim.kill()
    died_at = time.monotonic()
    crew.wait_until_done()
    again = [line.at - died_at for line in crew.ledger.starts(stage="fetch") if line.attempt == 2]
    assert len(again) == 4
    assert max(again) < RECOVERY_SECONDS + SLACK_SECONDS * slowness()
    if far:
        assert min(again) > LEASE_SECONDS * 0.6, "it was declared dead before its lease had ended"
    assert {event.data["why"] for event in crew.events("worker_died")} == {
        "its heartbeat stopped" if far else "its process is gone"
    }
    crew.judge()


# The reaper -----------------------------------------------------------------------------------------------------------


def leave_leases(crew: Crew, count: int) -> None:
    """Let a worker die with that many leases of the stage `count`, whose first attempts never end."""
    crew.add(f"item-{number}" for number in range(count))
    worker = crew.start("dead", concurrency=count, stages="count")
    wait_for(lambda: at_count(crew) == {"in_progress": count})
    worker.kill()


def at_count(crew: Crew) -> dict[str, int]:
    states: dict[str, int] = crew.app.status().pipelines[0].stages[0].states
    return states


def assert_freed_once_each(crew: Crew, count: int) -> None:
    wait_for(lambda: at_count(crew) == {"pending": count})
    assert len(crew.events("lease_expired")) == count
    assert len({event.data["lease"] for event in crew.events("lease_expired")}) == count
    assert crew.app.check() == []


@pytest.mark.req("J2")
@pytest.mark.fault(18)
def test_a_reaper_that_dies_in_its_sweep_leaves_the_rest_to_the_others(hire):
    """The sweep works in steps that each stand alone: killed in any of them, another goes on where it ended."""
    crew = hire("counted_slowly")
    leave_leases(crew, 250)  # three steps
    for point in (
        "store.remove_workers:1",
        "store.free_leases:1",
        "store.enter_waiting:1",
        "store.free_leases:2",
        "store.enter_waiting:2",
    ):
        sweeper = crew.start("sweeper", crash_at=point, stages="report", ready=False)
        assert sweeper.wait(15) == -signal.SIGKILL, f"{point} was never reached: {crew.all_said()}"
        assert crew.app.check() == []
    crew.start("heir", stages="report")
    assert_freed_once_each(crew, 250)


@pytest.mark.req("J1", "J2")
@pytest.mark.fault(19)
def test_eight_reapers_at_once_free_each_lease_once(hire):
    """Five hundred leases of a dead worker, and eight workers that find them at the same time."""
    crew = hire("counted_slowly")
    leave_leases(crew, 500)
    reapers = [crew.start(f"w{number}", stages="report", ready=False) for number in range(8)]
    assert_freed_once_each(crew, 500)
    crew.stop()
    usual = ("WARNING holdfast.worker: took over", "WARNING holdfast.worker: worker dead is dead")
    assert [line for worker in reapers for line in worker.said.splitlines() if not line.startswith(usual)] == []
