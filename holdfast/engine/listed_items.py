"""Lists of items as people ask for them: pages, with the version and the cost of each stage, and narrowed by what no index has.

Attempts, version, cost and time are in no index. A list that is narrowed by them looks through a bounded slice of the page
that the other filters make, and says how far it has looked: the next slice begins there.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any, NamedTuple

from holdfast.engine import pages
from holdfast.engine.layout import layout
from holdfast.model.facts import Facts
from holdfast.model.key_pattern import Patterns
from holdfast.model.states import State
from holdfast.store import Transaction

#: So many stages of items are looked at for one answer, and at a time.
LOOK = 10_000
CHUNK = 1_000


@dataclass(frozen=True, slots=True)
class Narrowed:
    """What must hold beyond what the indexes know. Nothing that is None is asked for."""

    #: At least so many.
    attempts: int | None = None
    #: Of the result.
    version: str | None = None
    #: At least so much, in millionths.
    cost: int | None = None
    #: Updated at this time or later, and before that.
    since: int | None = None
    until: int | None = None

    def __bool__(self) -> bool:
        return self != Narrowed()

    def fits(self, row: Facts) -> bool:
        return (
            (self.attempts is None or row["attempts"] >= self.attempts)
            and (self.version is None or row["version"] == self.version)
            and (self.cost is None or row["cost"] >= self.cost)
            and (self.since is None or row["updated_at"] >= self.since)
            and (self.until is None or row["updated_at"] < self.until)
        )


class Listed(NamedTuple):
    rows: list[Facts]
    #: Where the list goes on; None at its end.
    cursor: str | None
    #: How many were looked at to find these, if the list is narrowed.
    looked_at: int | None = None


def listed_items(
    tx: Transaction,
    narrowed: Narrowed,
    *,
    pipeline: str | None,
    stage: str | None,
    states: Collection[State],
    key: Patterns,
    error: str | None,
    group: str | None,
    after: int | str,
    most: int,
) -> Listed:
    """A page of items or of stages of items, as `pages.items` makes it; one that is narrowed is of stages."""

    def page(after: int | str, states: Collection[State], most: int) -> list[Facts]:
        which: dict[str, Any] = {
            "pipeline": pipeline,
            "stage": stage,
            "key": key,
            "error": error,
            "group": group,
        }
        return _with_versions(tx, pages.items(tx, **which, states=states, after=after, most=most))

    if not narrowed:
        rows = page(after, states, most)
        return Listed(rows, rows[-1]["cursor"] if len(rows) == most else None)
    found: list[Facts] = []
    looked = 0
    while looked < LOOK:
        size = min(CHUNK, LOOK - looked)
        rows = page(after, states or tuple(State), size)
        for row in rows:
            looked, after = looked + 1, row["cursor"]
            if narrowed.fits(row):
                found.append(row)
            if len(found) == most:
                return Listed(found, str(after), looked)
        if len(rows) < size:
            return Listed(found, None, looked)
    return Listed(found, str(after), looked)


def _with_versions(tx: Transaction, rows: list[Facts]) -> list[Facts]:
    """Stages of items with the version of their result, and what their paid calls have cost."""
    if not rows or "stage" not in rows[0]:
        return rows
    number = {(row.pipeline_name, row.name): row.id for row in layout(tx).stages.values()}
    places = [(row["id"], number[row["pipeline"], row["stage"]]) for row in rows]
    found = {(item, stage): told for item, stage, *told in tx.run_rows("versions_and_costs", places)}
    for row, place in zip(rows, places, strict=True):
        row["version"], row["cost"] = found[place]
    return rows
