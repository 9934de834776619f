"""Many processes over many items: each item is executed once, and nobody hears of a lock."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import pytest

from tests.support.effort import effort
from tests.support.processes import Crew, wait_for

PROCESSES = 8
ITEMS = effort(8_000, 20_000)


@pytest.mark.req("J1", "J4")
def test_eight_processes_execute_each_of_many_thousand_items_once(hire: Callable[[str], Crew]):
    crew = hire("counted")
    for number in range(PROCESSES):
        crew.start(f"w{number}", lease=10, concurrency=16, ready=False)
    wait_for(lambda: all(crew.is_known(worker) for worker in crew.workers))
    crew.add(f"item-{number}" for number in range(ITEMS))
    crew.wait_until_done(60)
    crew.stop()

    files = list(crew.ledger.path.parent.glob("ledger.*"))
    executed = Counter(key for file in files for key in file.read_text().splitlines())
    assert len(executed) == ITEMS
    assert set(executed.values()) == {1}
    # On a busy machine one of them may come when all is done.
    assert len(files) > PROCESSES // 2, "hardly anybody got something to do"
    assert [worker.said for worker in crew.workers] == [""] * PROCESSES
    assert [worker.wait() for worker in crew.workers] == [0] * PROCESSES
    assert crew.app.check() == []
