"""What must be true after trouble that was nobody's fault."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from tests.support.processes import Crew

STAGES = ("fetch", "extract", "save")


def pages(count: int, seconds: float, prefix: str = "page") -> Iterator[dict[str, str]]:
    """Items whose every stage takes this long."""
    for number in range(count):
        yield {"key": f"{prefix}-{number}", **dict.fromkeys(STAGES, f"sleep {seconds}")}


def assert_unharmed(crew: Crew) -> None:
    """No worker ended, nothing was taken from a living one, and each stage of each item ran once, at its first attempt."""
    gone = [worker.pid for worker in crew.workers if not worker.is_alive]
    assert not gone, crew.all_said()
    assert crew.events("worker_died") == [], crew.all_said()
    assert crew.events("lease_expired") == []
    assert crew.events("lease_lost") == []
    assert crew.events("attempt_failed") == []
    assert crew.events("exhausted") == []
    crew.judge()
    ran = Counter((line.key, line.stage, line.attempt) for line in crew.ledger.starts())
    assert set(ran.values()) == {1}
    assert {attempt for _, _, attempt in ran} == {1}
    assert len(ran) == len(STAGES) * len(crew.app.items(most=1_000_000))
