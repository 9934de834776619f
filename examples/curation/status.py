"""Where everything is: for each scheduler how many rows have which status, how many wait, and for how long."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import sqlalchemy as sa
from sqlalchemy import Engine

from examples.curation.scheduler import Scheduler
from holdfast.adopt import waiting

WORDS = ("queued", "processing", "completed", "failed")


@dataclass(frozen=True)
class Where:
    """One scheduler's rows."""

    scheduler: str
    #: By what the mapping calls the words; rows that were never queued do not count.
    counts: dict[str, int]
    #: Rows that could be claimed at once, and for how long the oldest has waited, where a column tells.
    waiting: int
    lag_seconds: float | None
    errors: list[tuple[object, str]] = field(default_factory=list)

    @property
    def open(self) -> int:
        return self.counts["queued"] + self.counts["processing"]


def where_all_is(engine: Engine, schedulers: Sequence[Scheduler]) -> list[Where]:
    with engine.connect() as connection:
        return [_where(connection, one) for one in schedulers]


def _where(connection: sa.Connection, scheduler: Scheduler) -> Where:
    mapping, status = scheduler.mapping, scheduler.status
    named = {mapping.words[word]: word for word in WORDS}
    counts = dict.fromkeys(WORDS, 0)
    for value, count in connection.execute(sa.select(status, sa.func.count()).group_by(status)):
        if value in named:
            counts[named[value]] = count
    found = waiting(connection, mapping, where=scheduler.own.get("where"))
    failed = sa.select(mapping.key[0], mapping.columns["error"]).where(status == mapping.words["failed"])
    errors = [(key, text) for key, text in connection.execute(failed.order_by(mapping.key[0]).limit(10))]
    return Where(scheduler.name, counts, found.rows, found.oldest_seconds, errors)


def table(places: Sequence[Where]) -> str:
    """For people."""
    lines = [f"{'':20}" + "".join(f"{word:>12}" for word in WORDS) + f"{'lag':>9}"]
    for one in places:
        lag = "" if one.lag_seconds is None else f"{one.lag_seconds:.0f} s"
        lines.append(f"{one.scheduler:20}" + "".join(f"{one.counts[word]:12}" for word in WORDS) + f"{lag:>9}")
        lines += [f"    row {key}: {text}" for key, text in one.errors]
    return "\n".join(lines)
