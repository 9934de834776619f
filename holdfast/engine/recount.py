"""Recount: compare counts, and the list of changed items, with the rows they summarise, and correct them.

Counts by state are wrong if something other than holdfast has written or removed rows. Counts of versions and the list of
changed items, which `plan` uses, are empty after an upgrade of the tables, and workers of the version before maintain neither:
a person recounts once these are gone.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from holdfast.engine.changed_items import WalkPlace, missing, recheck
from holdfast.engine.layout import layout
from holdfast.store import Store, Transaction


class Miscount(NamedTuple):
    """How many results of a version, of one type, are counted, and how many there are."""

    stage: int
    version: str
    type: str
    counted: int
    there: int


class StateMiscount(NamedTuple):
    """How many stages of items are counted in a state, and how many there are."""

    stage: int
    label: str
    state: str
    counted: int
    there: int

    def __str__(self) -> str:
        return f"{self.label} {self.state}: counted {self.counted}, there are {self.there}"


def check(store: Store) -> list[str]:
    """What differs from the rows. What was never counted cannot be wrong."""
    found = [str(one) for one in store.read(_state_miscounts)]
    times, wrong = store.read(_miscounts)
    found += store.read(lambda tx: _described(tx, wrong)) if times else []
    for pipeline, name, reason in store.read(_rechecks):
        if not reason:
            found += _described_missing(name, sum(_missing(store, pipeline)))
    return found


def repair(reader: Store, writer: Store) -> list[str]:
    """Correct the counts and the list of changed items; return what was wrong.

    Workers keep working meanwhile. They change rows and counts together, so the difference stays the same while it is being
    determined: it is found by reading, and then added.
    """
    (times, wrong), states = reader.read(lambda tx: (_miscounts(tx), _state_miscounts(tx)))

    def put_right(tx: Transaction) -> bool:
        # If another process has recounted since it was read, the difference was already added.
        mine = bool(tx.run("count_versions_anew", times=times))
        if mine:
            tx.run_rows("add_versions", [(0, *one[:3], one.there - one.counted) for one in wrong])
            tx.run_rows(
                "add_counts", [(tx.slot, one.stage, one.state, -1, one.there - one.counted, 0, 0) for one in states]
            )
        return mine

    done = [*reader.read(lambda tx: _described(tx, wrong)), *map(str, states)] if writer.write(put_right) else []
    for pipeline, name, reason in reader.read(_rechecks):
        place: WalkPlace | None = WalkPlace(pipeline, 0, reason)
        listed = 0
        while place is not None:
            n, place = writer.write(lambda tx, place=place: recheck(tx, place))  # type: ignore[misc]
            listed += n
        done += _described_missing(name, listed)
    return done


def _miscounts(tx: Transaction) -> tuple[int, list[Miscount]]:
    """The number of recounts so far, and what is wrong."""
    tx.read_all()
    counted = {(stage, version, type_): n for stage, version, type_, n in tx.run("read_versions")}
    times = counted.pop((0, "", ""), 0)
    there = {(stage, version, type_): n for stage, version, type_, n in tx.run("versions_by_row")}
    places = sorted(counted.keys() | there.keys())
    found = [Miscount(*place, counted.get(place, 0), there.get(place, 0)) for place in places]
    return times, [one for one in found if one.counted != one.there]


def _state_miscounts(tx: Transaction) -> list[StateMiscount]:
    known = layout(tx).stages
    tx.read_all()
    counted: dict[tuple[int, str], int] = {}
    for stage, state, _, n, _, _ in tx.run("read_counts"):
        counted[stage, state] = counted.get((stage, state), 0) + n
    there = {(stage, state): n for stage, state, n in tx.run("rows_by_state")}
    return [
        StateMiscount(
            stage, known[stage].label if stage in known else str(stage), state, n, there.get((stage, state), 0)
        )
        for (stage, state), n in sorted((dict.fromkeys(there, 0) | counted).items())
        if n != there.get((stage, state), 0)
    ]


def _rechecks(tx: Transaction) -> list[tuple[int, str, int]]:
    """By number and name of a pipeline: why its items must be rechecked, or 0."""
    names = {row.id: row.name for row in layout(tx).pipelines.values()}
    return [(number, names[number], reason) for number, reason in tx.run("read_rechecks")]


def _missing(store: Store, pipeline: int) -> Iterator[int]:
    place: WalkPlace | None = WalkPlace(pipeline)
    while place is not None:
        found, place = store.read(lambda tx, place=place: missing(tx, place))  # type: ignore[misc]
        yield len(found)


def _described(tx: Transaction, wrong: list[Miscount]) -> list[str]:
    known = layout(tx).stages
    return [
        f"{known[one.stage].label if one.stage in known else one.stage}, version {one.version!r}"
        f"{f', type {one.type}' if one.type else ''}: counted {one.counted}, there are {one.there}"
        for one in wrong
    ]


def _described_missing(pipeline: str, n: int) -> list[str]:
    return [f"{pipeline}: {n} items that may have changed are not listed as such"] if n else []
