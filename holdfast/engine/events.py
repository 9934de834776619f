"""Events, as they are asked for: the newest, or from one on; of a kind, of an item, of a pipeline, since a time.

A question costs what it returns, not what the log holds: an item's events, and those of a kind or since a time, have an
index. A pipeline's have none: if there are few, the log is searched.
"""

from __future__ import annotations

from typing import Any

from holdfast.engine.layout import layout
from holdfast.errors import UsageError
from holdfast.model import codec
from holdfast.model.did_you_mean import there_are
from holdfast.model.facts import Facts
from holdfast.model.history import EVENTS
from holdfast.model.user_event import UserEvent, is_user_event
from holdfast.store import Transaction

#: So many of the newest events are walked through before an index is searched instead; and so many from one on, or where
#: it is known that what is wanted lies there.
STRETCH = 5_000
WIDE = 50_000
#: Of one name, no more are counted.
MOST_COUNTED = 100_000
#: Before every time, and behind every number.
EVER, LAST = -(2**63), 2**63 - 1


def events(
    tx: Transaction,
    *,
    event: str | None = None,
    item: int | None = None,
    pipeline: str | None = None,
    since: int | None = None,
    after: int | None = None,
    most: int,
) -> list[Facts]:
    """Events, oldest first: from `after` on, or the newest."""
    number = None if pipeline is None else layout(tx).pipeline(pipeline).id
    check_name(tx, event)
    filters = {"event": event, "pipeline": number, "since": EVER if since is None else since, "most": most}
    back = after is None
    if item is not None:
        found = tx.run("item_events_back" if back else "item_events", item=item, after=after or 0, **filters)
    else:
        found = _in_the_log(tx, filters, after or 0, back)
    rows = tx.records("read_events", events=[number for (number,) in found]) if found else []
    for row in rows:
        row["data"] = codec.stored(row["data"], {})
    return rows


def count_events(
    tx: Transaction, *, event: str | None = None, pipeline: str | None = None, since: int | None = None
) -> list[Facts]:
    """How many there are of each name, with `more` where there are more than were counted."""
    number = None if pipeline is None else layout(tx).pipeline(pipeline).id
    check_name(tx, event)
    counted = []
    for name in [event] if event is not None else [kind for (kind,) in tx.run("event_kinds")]:
        [(n,)] = tx.run(
            "count_events", event=name, pipeline=number, since=EVER if since is None else since, most=MOST_COUNTED + 1
        )
        counted.append({"event": name, "count": min(n, MOST_COUNTED), "more": n > MOST_COUNTED})
    return [one for one in counted if one["count"]]


def record_user_event(tx: Transaction, event: UserEvent, *, pipeline: str | None, item: Facts | None) -> None:
    """An event of the user's own, of an item, of a pipeline, or of neither."""
    name = item["pipeline"] if item is not None else pipeline
    number = None if name is None else layout(tx).pipeline(name).id
    tx.record(event.name, pipeline=number, item=None if item is None else item["id"], **event.facts)


def check_name(tx: Transaction, event: str | None) -> None:
    if event is None or event in EVENTS or is_user_event(event):
        return
    # A newer holdfast, or an older one, may have recorded others.
    there = {*EVENTS, *(kind for (kind,) in tx.run("event_kinds"))}
    if event not in there:
        raise UsageError(f"there is no event {event!r}; {there_are(event, sorted(there))}")


def _in_the_log(tx: Transaction, filters: Facts, after: int, back: bool) -> list[tuple[Any, ...]]:
    walk = "walk_events_back" if back else "walk_events"
    event, by_kind = filters["event"], filters["event"] is not None or filters["since"] != EVER
    if not by_kind and filters["pipeline"] is None:
        return tx.run(walk, **filters, after=after, until=LAST)
    newest = max((number for number, _ in tx.run("newest_events", most=1)), default=0)
    low, high = (max(after, newest - STRETCH), newest) if back else (after, min(after + WIDE, newest))
    if back and event is not None:
        latest = tx.run("latest_events", **filters)
        if len(latest) < filters["most"]:
            return latest
        # The newest by number are among those from here on, whatever the clock did.
        low = min(latest)[0] - 1
    if high - low <= WIDE:
        found = tx.run(walk, **filters, after=low, until=high)
        if len(found) == filters["most"] or (low <= after and high >= newest):
            return found
    if not by_kind:
        return tx.run(walk, **filters, after=after, until=LAST)
    del filters["event"]
    kinds = [event] if event is not None else [kind for (kind,) in tx.run("event_kinds")]
    return tx.run("search_events_back" if back else "search_events", events=kinds, after=after, **filters)
