"""The audit: who did what, when and why, newest first. It is made of the actions on many items, and of the events that tell of
a single act; what an action did to each item is left to the action.

Both are walked back in order, a bounded slice at a time; the cursor of a page has a place in each.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import msgspec

from holdfast.engine import actions
from holdfast.engine.event_pages import DISORDER_US, read_events, read_numbers
from holdfast.engine.events import EVER, LAST
from holdfast.errors import UsageError
from holdfast.model.acts import COMMANDS, VERBS
from holdfast.model.did_you_mean import there_are
from holdfast.model.facts import Facts
from holdfast.store import Transaction

#: How many events of each name, and how many actions, a page looks through.
SLICE = 500


class _Act(NamedTuple):
    """An act that was looked at. Acts sort by time; of those at one time, actions are the newer ones."""

    at: int
    is_action: bool
    id: int
    is_wanted: bool
    #: What is known of an action.
    facts: Facts


class _Slice(NamedTuple):
    """The next acts of one sort, newest first, and whether there may be more."""

    acts: list[_Act]
    is_full: bool


def audit(
    tx: Transaction,
    *,
    by: str | None = None,
    verb: str | None = None,
    since: int | None = None,
    after: str = "",
    most: int,
) -> Facts:
    """A page of what people did, and the cursor of the next."""
    if verb is not None and verb not in VERBS:
        raise UsageError(f"there is no verb {verb!r}; {there_are(verb, VERBS)}")
    at, event, action = read_numbers(after, 3) if after else (LAST, LAST, LAST)
    begin = EVER if since is None else since
    slices = [*_events(tx, by, verb, begin, at, event), _actions(tx, by, verb, begin, action)]
    # Nothing older than the end of a slice is returned before the rest of that slice.
    ends = [one.acts[-1] for one in slices if one.is_full]
    until = max(ends, key=_order) if ends else None
    told: list[_Act] = []
    is_over = until is None
    for one in sorted((one for some in slices for one in some.acts), key=_order, reverse=True):
        if until is not None and _order(one) < _order(until):
            break
        if one.is_wanted and len(told) == most:
            is_over = False
            break
        if one.is_wanted:
            told.append(one)
        if one.is_action:
            action = one.id
        else:
            at, event = one.at, one.id
    return {"entries": list(_told(tx, told)), "cursor": None if is_over else f"{at}/{event}/{action}"}


def _order(one: _Act) -> tuple[int, bool, int]:
    return one.at, one.is_action, one.id


def _events(tx: Transaction, by: str | None, verb: str | None, since: int, at: int, before: int) -> Iterator[_Slice]:
    person = None if by is None else f'"by":{msgspec.json.encode(by).decode()}'
    for name, command in COMMANDS.items():
        if verb in (None, command):
            asked = {"event": name, "person": person, "since": since, "until": at, "before": before, "most": SLICE}
            rows = tx.run("slice_of_acts", **asked)
            yield _Slice([_Act(when, False, id_, bool(fits), {}) for id_, when, fits in rows], len(rows) == SLICE)


def _actions(tx: Transaction, by: str | None, verb: str | None, since: int, before: int) -> _Slice:
    rows = actions.actions(tx, before=before, most=SLICE)
    acts: list[_Act] = []
    for row in rows:
        # By number; a clock that was set must not turn the order around.
        at = min(row["created_at"], acts[-1].at if acts else LAST)
        fits = row["created_at"] >= since and by in (None, row["by"]) and verb in (None, row["kind"])
        acts.append(_Act(at, True, row["id"], fits, row))
    # One that this code cannot read is left out, so the number of rows says nothing.
    is_full = bool(rows and tx.run("list_actions", only_open=0, before=rows[-1]["id"], most=1))
    return _Slice(acts, is_full and rows[-1]["created_at"] >= since - DISORDER_US)


def _told(tx: Transaction, acts: list[_Act]) -> Iterator[Facts]:
    events = {row["id"]: row for row in read_events(tx, [one.id for one in acts if not one.is_action])}
    for one in acts:
        if one.is_action:
            asked = {"action": one.id, "filter": one.facts["filter"], "undoes": one.facts["undoes"]}
            yield {
                **{name: one.facts[name] for name in ("by", "reason")},
                "verb": one.facts["kind"],
                **asked,
                "at": one.facts["created_at"],
            }
            continue
        row = events[one.id]
        data: dict[str, Any] = dict(row["data"])
        who = {name: str(data.pop(name, "")) for name in ("by", "reason")}
        place = {name: row[name] for name in ("at", "event", "pipeline", "stage", "item", "resource")}
        yield {**who, **place, "number": one.id, "verb": COMMANDS[row["event"]], "data": data}
