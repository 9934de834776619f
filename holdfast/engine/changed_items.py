"""Changed items: a list of items whose results may be outdated, because the input of their stages may have changed.

An item enters the list when its data changes or a passed stage is reopened, and leaves it when a check finds it up to date. So
a question about stale results reads only listed items. After a change in the order of stages, every item is rechecked once, a
chunk at a time; until then, the list is incomplete.
"""

from __future__ import annotations

from collections.abc import Collection
from itertools import groupby
from operator import itemgetter
from typing import NamedTuple

from holdfast.engine.checkpoints import pictures_of, read_pictures
from holdfast.engine.layout import layout
from holdfast.store import Transaction

CHUNK = 500


class WalkPlace(NamedTuple):
    """How far a pass over the list, or a recheck of a pipeline, has come."""

    pipeline: int = 0
    item: int = 0
    #: The generation that asked for the recheck; 0 if none is in progress.
    recheck: int = 0


def enter(tx: Transaction, pipeline: int, items: Collection[int]) -> None:
    """Add items to the list: the input of their results may have changed."""
    tx.run_rows("enter_changed", [(pipeline, item) for item in sorted(set(items))])


def clear(tx: Transaction, after: WalkPlace, most: int = CHUNK) -> tuple[int, WalkPlace]:
    """Take items off the list, from a place on, that have no open work and are up to date; return how many, and where to
    continue."""
    # Locked until the commit: a writer that lists one of them again waits, and then does so.
    rows = tx.run("hold_changed", pipeline=after.pipeline, item=after.item, most=most)
    known = layout(tx)
    names = {row.id: row.name for row in known.pipelines.values()}
    cleared = 0
    for pipeline, same in groupby(rows, key=itemgetter(0)):
        items = [item for _, item in same]
        pictures = pictures_of(tx, items, names[pipeline]) if pipeline in names else ()
        kept = {picture.item for picture in pictures if picture.open or not picture.is_up_to_date(known)}
        # A deleted item needs no entry, nor does a pipeline that never was.
        gone = [item for item in items if item not in kept]
        tx.run("clear_changed", pipeline=pipeline, items=gone)
        cleared += len(gone)
    return cleared, WalkPlace(*rows[-1]) if len(rows) == most else WalkPlace()


def missing(tx: Transaction, place: WalkPlace, most: int = CHUNK) -> tuple[list[int], WalkPlace | None]:
    """The next items of a pipeline that should be listed and are not, and where to continue; None at the end."""
    known = layout(tx)
    [name] = [row.name for row in known.pipelines.values() if row.id == place.pipeline]
    items = tx.run("items_with_data", pipeline=place.pipeline, after=place.item, key=None, most=most)
    pictures = read_pictures(tx, items, known.of_pipeline(name)) if items else []
    found = [picture.item for picture in pictures if not picture.is_up_to_date(known)]
    listed = {item for (item,) in tx.run("changed_among", pipeline=place.pipeline, items=found)} if found else set()
    more = place._replace(item=items[-1][0]) if len(items) == most else None
    return [item for item in found if item not in listed], more


def recheck(tx: Transaction, place: WalkPlace, most: int = CHUNK) -> tuple[int, WalkPlace | None]:
    """List the next items of a pipeline that should be; return how many, and where to continue. At the end the list is
    complete, unless the order of stages has changed again meanwhile."""
    found, more = missing(tx, place, most)
    enter(tx, place.pipeline, found)
    if more is None:
        tx.run("end_recheck", pipeline=place.pipeline, recheck=place.recheck)
    tx.is_for_nothing = more is not None and not found
    return len(found), more


def one_stretch(tx: Transaction, place: WalkPlace) -> tuple[bool, WalkPlace]:
    """Recheck a chunk if that is due, or clear one; return whether there is more to do now, and where."""
    asked = [WalkPlace(pipeline, 0, reason) for pipeline, reason in tx.run("pipelines_to_recheck")]
    if asked:
        under_way = next((place for one in asked if one == place._replace(item=0)), asked[0])
        _, more = recheck(tx, under_way)
        return True, more or WalkPlace()
    cleared, after = clear(tx, WalkPlace() if place.recheck else place)
    tx.is_for_nothing = not cleared
    return cleared == CHUNK, after
