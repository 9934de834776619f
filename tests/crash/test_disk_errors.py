"""The disk takes no more of one worker's writes, or fails them: that worker ends and says so; the others lose nothing."""

from __future__ import annotations

import itertools
import random
import resource
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.errors import StoreBroken
from tests.support.effort import effort
from tests.support.failing_disk import CALLS, FailingDisk, find_way
from tests.support.processes import Crew, WorkerProcess, crew_on, wait_for
from tests.support.spawned import spawn
from tests.support.temporary import on_disk
from tests.support.unharmed import pages

#: What a file of the limited worker may grow to. Its ledger stays well below that, the log of the database does not.
LIMIT_BYTES = 200_000


@pytest.fixture
def tmp_path() -> Iterator[Path]:
    """On a disk, where a sync is more than a word."""
    with on_disk() as folder:
        yield folder


@pytest.fixture
def crew(tmp_path: Path) -> Iterator[Crew]:
    with crew_on(f"sqlite:///{tmp_path / 'store.db'}", tmp_path) as crew:
        crew.app.register()
        yield crew


@pytest.fixture(scope="module")
def failing(tmp_path_factory: pytest.TempPathFactory) -> FailingDisk:
    found = find_way(tmp_path_factory.mktemp("failing"))
    if isinstance(found, str):
        pytest.skip(f"a disk that fails needs a C compiler or strace: {found}")
    return found


def _ended_in_order(worker: WorkerProcess) -> None:
    """By the exit code for a database in trouble, with a line that says what the trouble is. Threads that hand back items may
    log after it."""
    assert worker.wait() == StoreBroken.exit_code, worker.said
    told = [line for line in worker.said.splitlines() if line.startswith("holdfast: ")]
    assert any(words in line for line in told for words in ("the disk does not read or write", "the lock file")), (
        worker.said
    )


@pytest.mark.fault(45)
@pytest.mark.req("V7")
def test_a_worker_that_may_write_no_larger_files_ends_and_the_others_do_its_work(crew: Crew, tmp_path: Path):
    limited = spawn(crew, tmp_path, "limited", ready=False)
    others = [crew.start(f"w{number}") for number in range(2)]
    wait_for(lambda: crew.is_known(limited))
    rounds = itertools.count()

    def all_have_worked() -> bool:
        # Two quick workers may take all of a short list before the third one looks.
        crew.add(pages(5, 0.02, prefix=f"round-{next(rounds)}"))
        return {line.pid for line in crew.ledger.ends()} == {worker.pid for worker in crew.workers}

    wait_for(all_have_worked, every=0.2)
    resource.prlimit(limited.pid, resource.RLIMIT_FSIZE, (LIMIT_BYTES, LIMIT_BYTES))
    crew.add(pages(30, 0.02, prefix="more"))
    _ended_in_order(limited)
    crew.wait_until_done()
    assert all(worker.is_alive for worker in others), crew.all_said()
    crew.judge()
    assert set(crew.states().values()) == {"done"}
    assert crew.ledger.path.stat().st_size < LIMIT_BYTES, "handlers could not write what they did"


@pytest.mark.fault(46)
@pytest.mark.req("V2", "V7")
@pytest.mark.parametrize("once", [False, True], ids=["for good", "once"])
@pytest.mark.parametrize("call", CALLS)
def test_a_write_that_fails_ends_the_worker_and_nothing_that_was_saved_is_lost(
    crew: Crew, failing: FailingDisk, tmp_path: Path, call: str, once: bool
):
    """What others have seen done, or a later stage was given, stays as it was seen."""
    rng = random.Random(f"{call} {once}")
    for number in range(effort(1, 8)):
        crew.add(pages(12, 0.0, prefix=f"round-{number}"))
        nth = rng.randrange(5, 40)
        victim = spawn(crew, tmp_path, f"victim-{number}", ready=False, **failing.at(call, nth, once=once))
        seen: dict[tuple[str, str], str] = {}

        def ended(victim: WorkerProcess = victim, seen: dict[tuple[str, str], str] = seen) -> bool:
            seen |= {where: state for where, state in crew.states().items() if state == "done"}
            return not victim.is_alive

        wait_for(ended)
        _ended_in_order(victim)
        states = crew.states()
        assert {where for where in seen if states[where] != "done"} == set()
        for line in crew.ledger.starts():
            if line.seen:
                stage, _, mark = line.seen.partition(" ")
                assert crew.stage(line.key, stage).result == {"mark": mark}, f"{victim.said}\n{nth}. {call}"
        assert crew.app.check() == []
    assert crew.start("heir", drain=True).wait() == 0
    crew.judge()
    assert set(crew.states().values()) == {"done"}
