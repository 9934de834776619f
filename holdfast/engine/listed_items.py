"""Lists of items as people ask for them: pages, with the version and the cost of each stage, and narrowed by what no index has.

Attempts, version, cost, time and parts of errors are in no index. A list that is narrowed by them looks through a bounded
slice of the page that the other filters make, and says how far it has looked: the next slice begins there. An index of times
would be written with every step. Instead the database passes over items at which nothing changed in time, which is quicker than
to read them.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any, NamedTuple

from holdfast.engine import pages
from holdfast.engine.layout import layout
from holdfast.model.facts import Facts
from holdfast.model.key_pattern import Patterns
from holdfast.model.states import State
from holdfast.store import Transaction

#: So many stages of items are looked at for one answer, and at a time.
LOOK = 3_000
CHUNK = 1_000
#: So many numbers of items are passed over for one answer, because nothing changed at them in time, or has such an error.
PASS_OVER = 15_000


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

    @property
    def by_time(self) -> bool:
        return self.since is not None or self.until is not None

    def __bool__(self) -> bool:
        return self != Narrowed()

    def may_fit(self, row: Facts) -> bool:
        """By what stands in the row itself."""
        return (
            (self.attempts is None or row["attempts"] >= self.attempts)
            and (self.since is None or row["updated_at"] >= self.since)
            and (self.until is None or row["updated_at"] < self.until)
        )

    def fits(self, row: Facts) -> bool:
        """Of a row that may fit: by its version and its cost, which are read for it."""
        return (self.version is None or row["version"] == self.version) and (
            self.cost is None or row["cost"] >= self.cost
        )


class Listed(NamedTuple):
    rows: list[Facts]
    #: Where the list goes on; None at its end.
    cursor: str | None
    #: If the list is narrowed: how many stages of items were looked at to find these, and items passed over.
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

    def page(after: int | str, states: Collection[State], most: int, last: int = pages.LAST) -> list[Facts]:
        which: dict[str, Any] = {
            "pipeline": pipeline,
            "stage": stage,
            "key": key,
            "error": error,
            "group": group,
        }
        return pages.items(tx, **which, states=states, after=after, most=most, last=last)

    if error is not None and not narrowed:
        # A part of an error is in no index either; the database searches for it.
        last = pages.Place.read(after).item + PASS_OVER
        rows = _with_versions(tx, page(after, states, most, last))
        if len(rows) == most:
            return Listed(rows, rows[-1]["cursor"])
        return Listed(rows, str(last), PASS_OVER) if _newest(tx) > last else Listed(rows, None)
    if not narrowed:
        rows = _with_versions(tx, page(after, states, most))
        return Listed(rows, rows[-1]["cursor"] if len(rows) == most else None)
    return _slice(tx, narrowed, lambda after, size: page(after, states or tuple(State), size), after, most)


def _slice(
    tx: Transaction,
    narrowed: Narrowed,
    page: Callable[[int | str, int], list[Facts]],
    after: int | str,
    most: int,
) -> Listed:
    found: list[Facts] = []
    looked = passed_over = 0
    while looked < LOOK and passed_over < PASS_OVER:
        size = min(CHUNK, LOOK - looked)
        rows = page(after, size)
        fitting = _fitting(tx, rows, narrowed)
        for place, row in fitting:
            found.append(row)
            if len(found) == most:
                return Listed(found, row["cursor"], looked + passed_over + place + 1)
        looked += len(rows)
        if len(rows) < size:
            return Listed(found, None, looked + passed_over)
        after = rows[-1]["cursor"]
        if narrowed.by_time and not fitting:
            here = rows[-1]["id"]
            there = _next_changed(tx, narrowed, here, here + PASS_OVER - passed_over)
            if there is None:
                return Listed(found, None, looked + passed_over)
            if there > here:
                after, passed_over = there - 1, passed_over + there - here
    return Listed(found, str(after), looked + passed_over)


def _next_changed(tx: Transaction, narrowed: Narrowed, first: int, last: int) -> int | None:
    """The next item from `first` on at which something changed in time, or the number behind `last` if there is none before;
    None if there are no items behind `last` either."""
    since = -pages.LAST if narrowed.since is None else narrowed.since
    until = pages.LAST if narrowed.until is None else narrowed.until
    upto = last + 1
    for statement in ("next_updated", "next_ended", "next_held", "next_leased"):
        found = tx.run(statement, first=first, last=upto - 1, since=since, until=until)
        upto = found[0][0] if found else upto
    if upto <= last:
        return upto
    return upto if _newest(tx) > last else None


def _newest(tx: Transaction) -> int:
    """The number of the newest item."""
    [(newest, _)] = tx.run("newest_of_all")
    return newest or 0


def _fitting(tx: Transaction, rows: list[Facts], narrowed: Narrowed) -> list[tuple[int, Facts]]:
    """Those of these rows that are wanted, with their places; what has to be looked up is looked up for few."""
    near = [(place, row) for place, row in enumerate(rows) if narrowed.may_fit(row)]
    _with_versions(tx, [row for _, row in near])
    return [(place, row) for place, row in near if narrowed.fits(row)]


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
