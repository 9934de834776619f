"""Pages of the log, newest first. A page looks through a bounded slice of the log, however few events are wanted, and says
where the next one begins: a rare event costs more pages, never a long wait.

Events of one name come by time, for which there is an index; others by number. The place of an event is `TIME/NUMBER`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from holdfast.clock import SECOND
from holdfast.engine.events import EVER, LAST, check_name
from holdfast.engine.layout import layout
from holdfast.errors import UsageError
from holdfast.model import codec
from holdfast.model.facts import Facts
from holdfast.store import Transaction

#: How many events a page looks through where it may want few of them.
SLICE = 5_000
#: Numbers and times are in the same order, but for clocks that were set and for transactions that took long.
DISORDER_US = 24 * 3600 * SECOND


class Place(NamedTuple):
    """The place of an event in the log. A page has what is before it."""

    at: int = LAST
    id: int = LAST

    @classmethod
    def read(cls, text: str) -> Place:
        return cls(*read_numbers(text, 2)) if text else cls()

    def __str__(self) -> str:
        return f"{self.at}/{self.id}"


#: The number and the time of an event, and whether it is wanted.
Row = tuple[int, int, int]


def read_numbers(text: str, count: int) -> list[int]:
    """The parts of a cursor."""
    parts = text.split("/")
    if len(parts) != count or not all(one.isascii() and one.isdecimal() and len(one) < 20 for one in parts):
        raise UsageError(f"after {text!r}: it is not the cursor of a page")
    return [min(int(one), LAST) for one in parts]


def newest_events(
    tx: Transaction,
    *,
    event: str | None = None,
    item: int | None = None,
    pipeline: str | None = None,
    stage: str | None = None,
    since: int | None = None,
    after: str = "",
    most: int,
) -> Facts:
    """A page of events, and the cursor of the next."""
    known, place = layout(tx), Place.read(after)
    check_name(tx, event)
    filters: dict[str, Any] = {
        "pipeline": None if pipeline is None else known.pipeline(pipeline).id,
        "any_stage": int(stage is None),
        "stages": [] if stage is None else [row.id for row in known.chosen(pipeline, stage)],
        "since": EVER if since is None else since,
    }
    is_narrow = (
        pipeline is not None or stage is not None or since is not None or (item is not None and event is not None)
    )
    filters["most"] = limit = max(most + 1, SLICE if is_narrow else 0)
    if item is not None:
        rows = tx.run("slice_of_item", item=item, event=event, before=place.id, **filters)
    elif event is not None:
        rows = tx.run("slice_of_kind", event=event, until=place.at, before=place.id, **filters)
    else:
        rows = tx.run("slice_of_log", before=place.id, **filters)
    wanted = [row for row in rows if row[2]]
    cursor = None
    if len(wanted) > most:
        cursor = _place(wanted[most - 1])
    elif len(rows) == limit and (since is None or rows[-1][1] >= since - DISORDER_US):
        cursor = _place(rows[-1])
    return {
        "events": read_events(tx, [row[0] for row in wanted[:most]]),
        "cursor": None if cursor is None else str(cursor),
    }


def read_events(tx: Transaction, numbers: Sequence[int]) -> list[Facts]:
    """These events, in this order."""
    found = {one["id"]: one for one in tx.records("read_events", events=list(numbers))} if numbers else {}
    for one in found.values():
        one["data"] = codec.stored(one["data"], {})
    return [found[number] for number in numbers]


def _place(row: Row) -> Place:
    return Place(row[1], row[0])
