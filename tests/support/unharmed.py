"""What must be true after trouble that was nobody's fault."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path

from tests.support.processes import Crew, wait_for

STAGES = ("fetch", "extract", "save")


def pages(count: int, seconds: float, prefix: str = "page") -> Iterator[dict[str, str]]:
    """Items whose every stage takes this long."""
    for number in range(count):
        yield {"key": f"{prefix}-{number}", **dict.fromkeys(STAGES, f"sleep {seconds}")}


def held(count: int, gate: Path) -> Iterator[dict[str, str]]:
    """Items whose first stage runs until there is a file of this name."""
    for number in range(count):
        yield {"key": f"held-{number}", "fetch": f"until {gate}"}


def begin(crew: Crew, gate: Path, others: Iterable[dict[str, str]]) -> None:
    """Give the workers two items to hold until the gate opens, and others; return when all that is under way."""
    crew.add(held(2, gate))
    wait_for(lambda: len(crew.ledger.starts(stage="fetch")) == 2)
    crew.add(others)
    wait_for(lambda: len(crew.ledger.ends()) > 40)


def assert_unharmed(crew: Crew) -> None:
    """No worker ended, nothing was taken from a living one, and each stage of each item ran once, at its first attempt."""
    gone = [worker.pid for worker in crew.workers if not worker.is_alive]
    assert not gone, crew.all_said()
    assert crew.events("worker_died") == (), crew.all_said()
    assert crew.events("lease_expired") == ()
    assert crew.events("lease_lost") == ()
    assert crew.events("attempt_failed") == ()
    assert crew.events("exhausted") == ()
    crew.judge()
    ran = Counter((line.key, line.stage, line.attempt) for line in crew.ledger.starts())
    assert set(ran.values()) == {1}
    assert {attempt for _, _, attempt in ran} == {1}
    assert len(ran) == len(STAGES) * len(crew.app.items(most=1_000_000))
