"""Due look-ups: for a source that looks something up for each item, which items are still to be looked up.

Items are walked in order, in chunks: the number of an item says how far a look has come, and items that were looked up are
skipped without being read.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from holdfast.engine.layout import layout
from holdfast.engine.poll_sources import DueSource
from holdfast.model import codec
from holdfast.model.found_items import Found, LookedUp, short_hash
from holdfast.store import Transaction

#: Due items per statement; and the range of item numbers that one statement may cover.
BATCH = 200
WINDOW = 10_000


class Lookup(NamedTuple):
    """Something to look up: the key, the data, and the number of the item."""

    key: str
    data: Any
    done: LookedUp
    item: int = 0


def last_item(tx: Transaction) -> int:
    """The highest number of any item."""
    return int(tx.run("last_item")[0][0])


def due_of_pipeline(
    tx: Transaction, due: DueSource, pipeline: str, stage: str | None, after: int, until: int, again_us: int | None
) -> list[Lookup]:
    """The first items with numbers above `after`, up to `until`, that are to be looked up."""
    given: dict[str, Any] = {
        "source": due.id,
        "of": due.definition,
        "after": after,
        "until": until,
        "again": _again(tx, again_us),
        "most": BATCH,
    }
    if stage is None:
        rows = tx.run("items_to_look_up", pipeline=layout(tx).pipeline(pipeline).id, **given)
    else:
        [row] = layout(tx).chosen(pipeline, stage)
        rows = tx.run("results_to_look_up", stage=row.id, **given)
    return [
        Lookup(key, None if data is None else codec.stored(data, {}), LookedUp(str(item), mark), item)
        for item, key, data, mark in rows
    ]


def due_of_found(tx: Transaction, due: DueSource, found: Sequence[Found], again_us: int | None) -> list[Lookup]:
    """The same for items that another source has found."""
    wanted = {
        one.key: Lookup(
            one.key, one.data, LookedUp(short_hash(one.key), due.definition + (one.mark or codec.digest(one.data)))
        )
        for one in found
    }
    keys = [one.done.key for one in wanted.values()]
    known = set(tx.run("read_lookups", source=due.id, keys=keys, again=_again(tx, again_us)))
    return [one for one in wanted.values() if tuple(one.done) not in known]


def _again(tx: Transaction, again_us: int | None) -> int:
    return -1 if again_us is None else tx.now - again_us
