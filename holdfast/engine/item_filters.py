"""Lists of items as people ask for them: pages, with the version and the cost of each stage, and narrowed by what no index has.

Attempts, version, cost and time are in no index. A list that is narrowed by them looks through a bounded slice of the page
that the other filters make, and says how far it has looked: the next slice begins there. So does a list of what `item_pages`
has to search for. An index of times would be written with every step. Instead the database passes over items at which nothing
changed in time, which is quicker than to read them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import NamedTuple

from holdfast.engine import item_pages
from holdfast.engine.layout import layout
from holdfast.model.facts import Facts
from holdfast.model.item_filter import Which
from holdfast.model.states import State
from holdfast.store import Transaction

#: So many stages of items are looked at for one answer, and at a time.
LOOK = 1_500
CHUNK = 500
#: So many numbers of items are passed over for one answer, because nothing changed at them in time.
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
        """By what stands in the row itself. A stray, whose item does not exist, may have no time."""
        updated_at = row["updated_at"]
        return (self.attempts is None or row["attempts"] >= self.attempts) and (
            not self.by_time
            or (
                updated_at is not None
                and (self.since is None or updated_at >= self.since)
                and (self.until is None or updated_at < self.until)
            )
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
    #: If this was searched for: how many stages of items were looked at to find these, or items passed over.
    looked_at: int | None = None


def listed_items(tx: Transaction, which: Which, narrowed: Narrowed, *, after: int | str, most: int) -> Listed:
    """A page of items or of stages of items, as `item_pages.items` makes it; one that is narrowed is of stages."""
    if narrowed and not which.states:
        which = replace(which, states=frozenset(State))

    def page(after: int | str, most: int) -> tuple[list[Facts], str | None]:
        """A page, and where to go on behind it."""
        last = item_pages.reach(tx, which, after)
        rows = item_pages.items(tx, which, after=after, most=most, last=last)
        if len(rows) == most:
            return rows, rows[-1]["cursor"]
        return rows, None if last == item_pages.LAST else str(last)

    if narrowed:
        return _slice(tx, narrowed, page, after, most)
    rows, cursor = page(after, most)
    looked = None if cursor is None or len(rows) == most else int(cursor) - item_pages.Place.read(after).item
    return Listed(_with_versions(tx, rows), cursor, looked)


def _slice(
    tx: Transaction,
    narrowed: Narrowed,
    page: Callable[[int | str, int], tuple[list[Facts], str | None]],
    after: int | str,
    most: int,
) -> Listed:
    found: list[Facts] = []
    looked = passed_over = 0
    while looked < LOOK and passed_over < PASS_OVER:
        size = min(CHUNK, LOOK - looked)
        rows, behind = page(after, size)
        fitting = _fitting(tx, rows, narrowed)
        for place, row in fitting:
            found.append(row)
            if len(found) == most:
                return Listed(found, row["cursor"], looked + passed_over + place + 1)
        looked += len(rows)
        if len(rows) < size or behind is None:
            searched = 0 if behind is None else int(behind) - item_pages.Place.read(after).item
            return Listed(found, behind, looked + passed_over + searched)
        after = behind
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
    since = -item_pages.LAST if narrowed.since is None else narrowed.since
    until = item_pages.LAST if narrowed.until is None else narrowed.until
    upto = last + 1
    for statement in ("next_updated", "next_ended", "next_held", "next_leased"):
        found = tx.run(statement, first=first, last=upto - 1, since=since, until=until)
        upto = found[0][0] if found else upto
    if upto <= last:
        return upto
    [(newest, _)] = tx.run("newest_of_all")
    return upto if (newest or 0) > last else None


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
