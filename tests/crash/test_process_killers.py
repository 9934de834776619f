"""Items that take the whole process with them: they use up their own attempts, and nobody else's."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from holdfast.model.states import Alone
from tests.support.processes import Crew, wait_for

KILLERS = {"abort": signal.SIGABRT, "segfault": signal.SIGSEGV}


def keep_one_alive(crew: Crew, *, concurrency: int, timeout: float = 60.0) -> list[int]:
    """What a supervisor does: replace the worker whenever it dies, until all is done. The exit codes of the dead."""
    codes: list[int] = []
    worker = crew.workers[-1] if crew.workers else crew.start("w0", concurrency=concurrency)

    def done() -> bool:
        nonlocal worker
        if not worker.is_alive:
            codes.append(worker.wait())
            worker = crew.start(f"w{len(crew.workers)}", concurrency=concurrency)
        return crew.is_done()

    wait_for(done, timeout)
    return codes


@pytest.mark.req("J2", "J3")
@pytest.mark.fault(11)
@pytest.mark.parametrize("act", KILLERS)
def test_a_killer_is_exhausted_after_its_attempts_and_the_innocents_beside_it_are_done(crew: Crew, act: str):
    """It dies once beside others; then everyone who was there runs in a process of its own, where it dies alone."""
    innocents = [{"key": f"page-{number}", "fetch": "sleep 0.1"} for number in range(30)]
    crew.add([*innocents[:10], {"key": "killer", "fetch": act}, *innocents[10:]])
    codes = keep_one_alive(crew, concurrency=8)
    killer = crew.stage("killer", "fetch")
    assert (killer.state, killer.attempts) == ("exhausted", 3)
    assert KILLERS[act].name in killer.error
    assert [line.attempt for line in crew.ledger.starts("killer", "fetch")] == [1, 2, 3]
    assert codes == [-KILLERS[act]], "one death beside others, the rest in isolation"
    crew.judge()
    assert {crew.stage(item["key"], "save").state for item in innocents} == {"done"}


@pytest.mark.req("J3")
@pytest.mark.fault(11)
def test_a_row_of_killers_does_not_exhaust_the_slow_innocents_between_them(crew: Crew):
    """An innocent that runs isolated still dies with its worker when the next killer strikes: that is not its fault."""
    slow = [{"key": f"slow-{number}", "fetch": "sleep 2"} for number in range(3)]
    killers = [{"key": f"killer-{number}", "fetch": "sleep 0.1; abort"} for number in range(8)]
    crew.add([*slow, *killers])
    codes = keep_one_alive(crew, concurrency=4)
    assert codes and set(codes) == {-signal.SIGABRT}
    assert {item["key"]: crew.stage(item["key"], "fetch").state for item in slow} == {
        item["key"]: "done" for item in slow
    }
    for item in killers:
        assert crew.stage(item["key"], "fetch").state == "exhausted"
    crew.judge()


@pytest.mark.req("P6")
@pytest.mark.fault(11)
def test_many_kills_of_a_worker_exhaust_only_the_killer_among_those_it_holds(crew: Crew):
    """From the first kill on all of them are in isolation: what each has for company is sixteen others like it."""
    gate = crew.gate()
    innocents = [{"key": f"page-{number}", "fetch": f"until {gate}"} for number in range(15)]
    crew.add([*innocents[:8], {"key": "killer", "fetch": f"until {gate}; abort"}, *innocents[8:]])
    for kill in range(1, 8):
        worker = crew.start(f"w{kill}", concurrency=16)
        wait_for(lambda: len(crew.ledger.starts(stage="fetch")) == 16 * kill)  # noqa: B023
        worker.kill()
    crew.start("last", concurrency=16)
    gate.touch()
    crew.wait_until_done()
    killer = crew.stage("killer", "fetch")
    assert (killer.state, killer.attempts) == ("exhausted", 3)
    assert "SIGABRT" in killer.error
    assert {crew.stage(item["key"], "save").state for item in innocents} == {"done"}
    assert {crew.stage(item["key"], "fetch").attempts for item in innocents} == {2}
    crew.judge()


@pytest.mark.req("P6", "J3")
@pytest.mark.fault(11, 13)
def test_an_item_under_strong_suspicion_gets_a_worker_to_itself_and_dies_with_it_alone(crew: Crew):
    """Not even a process of its own has helped: only what a worker held when it held nothing else is to blame."""
    crew.add([{"key": "page-0", "fetch": "sleep 0.2"}, {"key": "killer", "fetch": "kill-worker"}, "page-1", "page-2"])
    crew.app.store.write(
        lambda tx: tx.connection.execute(
            f"UPDATE {tx.store.driver.dialect.table('waiting')} SET alone = {Alone.SOLITARY:d}"
        )
    )
    crew.add([{"key": f"fresh-{number}", "fetch": "sleep 0.1"} for number in range(4)])
    codes = keep_one_alive(crew, concurrency=4)
    assert codes == [-signal.SIGKILL] * 3
    killer = crew.stage("killer", "fetch")
    assert (killer.state, killer.attempts) == ("exhausted", 3)
    others = [row.key for row in crew.app.items() if row.key != "killer"]
    assert {crew.stage(key, "save").state for key in others} == {"done"}
    assert {crew.stage(key, "fetch").attempts for key in others} == {1}, "none was in hand when a worker died"
    crew.judge()


@pytest.mark.fault(11)
def test_a_killer_in_a_batch_does_not_exhaust_its_batch(hire: Callable[[str], Crew]):
    crew = hire("batched_books")
    crew.add([*(f"page-{number}" for number in range(7)), {"key": "killer", "fetch": "abort"}])
    keep_one_alive(crew, concurrency=2)
    assert crew.stage("killer", "fetch").state == "exhausted"
    assert {crew.stage(f"page-{number}", "save").state for number in range(7)} == {"done"}
    crew.judge()


@pytest.mark.fault(11)
def test_a_killer_in_isolation_costs_no_worker(hire: Callable[[str], Crew]):
    crew = hire("isolated_books")
    crew.add([{"key": "killer", "fetch": "segfault"}, {"key": "quitter", "fetch": "leave 0"}, "page-1", "page-2"])
    worker = crew.start()
    crew.wait_until_done()
    for key, how in (("killer", "signal 11 (SIGSEGV)"), ("quitter", "exit code 0")):
        stage = crew.stage(key, "fetch")
        assert (stage.state, stage.attempts) == ("exhausted", 3)
        assert stage.error == f"ProcessDied: the process that ran it ended with {how}"
    assert worker.is_alive
    crew.judge()


@pytest.mark.req("J2")
@pytest.mark.fault(12)
def test_a_handler_that_leaves_with_exit_code_zero_is_a_death_that_counts(crew: Crew):
    """os._exit(0) cannot be caught; the attempt is spent all the same, and the item ends exhausted."""
    crew.add([{"key": "quitter", "fetch": "leave 0"}, *(f"page-{number}" for number in range(10))])
    codes = keep_one_alive(crew, concurrency=4)
    assert codes == [0]
    quitter = crew.stage("quitter", "fetch")
    assert (quitter.state, quitter.attempts) == ("exhausted", 3)
    assert crew.stage("page-9", "save").state == "done"
    crew.judge()


@pytest.mark.fault(13)
def test_a_memory_hog_fails_in_its_own_attempts_and_the_worker_goes_on(crew: Crew):
    """Under a limit the allocation fails: an ordinary failure, also while the process is short of memory."""
    crew.add([{"key": "hog", "fetch": "fill 4000"}, *(f"page-{number}" for number in range(20))])
    worker = crew.start(environment={"HOLDFAST_TEST_MEMORY": str(700 << 20)}, concurrency=4)
    crew.wait_until_done()
    hog = crew.stage("hog", "fetch")
    assert (hog.state, hog.attempts, hog.error) == ("exhausted", 3, "MemoryError")
    assert {crew.stage(f"page-{number}", "save").state for number in range(20)} == {"done"}
    assert worker.is_alive
    crew.judge()


@pytest.mark.fault(13)
def test_a_memory_hog_in_isolation_ends_alone(hire: Callable[[str], Crew]):
    crew = hire("isolated_books")
    crew.add([{"key": "hog", "fetch": "fill 4000"}, "page-1", "page-2"])
    worker = crew.start(environment={"HOLDFAST_TEST_MEMORY": str(500 << 20)})
    crew.wait_until_done()
    assert crew.stage("hog", "fetch").state == "exhausted"
    assert worker.is_alive
    crew.judge()


@pytest.mark.fault(13)
def test_a_worker_that_cannot_start_as_many_threads_as_it_wants_works_with_fewer(crew: Crew):
    """Each thread reserves eight megabytes: under a limit of memory there is an end to them."""
    crew.add({"key": f"page-{number}", "fetch": "sleep 0.1"} for number in range(100))
    crew.start(environment={"HOLDFAST_TEST_MEMORY": str(600 << 20)}, concurrency=100)
    crew.wait_until_done()
    assert crew.app.status().pipelines[0].stages[2].states == {"done": 100}
    assert "stumbled" not in crew.all_said()
    crew.judge()


@pytest.mark.fault(11)
@pytest.mark.parametrize("moment", ["idle", "busy"])
def test_the_death_of_the_process_that_makes_children_costs_no_item_its_attempts(
    hire: Callable[[str], Crew], moment: str
):
    """The system may end any process of a worker. Either it is replaced, or the worker makes way for another."""
    crew = hire("isolated_books")
    crew.add([{"key": "first", "fetch": f"until {crew.gate()}" if moment == "busy" else ""}])
    worker = crew.start()
    wait_for(lambda: crew.ledger.starts("first"))
    if moment == "idle":
        crew.wait_until_done()
    [nursery] = Path(f"/proc/{worker.pid}/task/{worker.pid}/children").read_text().split()
    os.kill(int(nursery), signal.SIGKILL)
    crew.gate().touch()
    crew.add(f"page-{number}" for number in range(10))
    keep_one_alive(crew, concurrency=4)
    assert crew.app.status().pipelines[0].stages[2].states == {"done": 11}
    crew.judge()
