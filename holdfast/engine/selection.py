"""Selection: which stages of items an action is for, who asked for it, and how far it has come."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import msgspec

from holdfast.engine import error_groups
from holdfast.engine.item_pages import Place as Cursor
from holdfast.engine.item_pages import Some, some_stages_of_items, stages_of_items
from holdfast.engine.layout import layout
from holdfast.model.error_fingerprint import storable
from holdfast.model.item_filter import Which
from holdfast.model.key_pattern import several
from holdfast.model.layout import StageRow
from holdfast.model.states import State
from holdfast.store import Transaction

#: Entries per transaction of an action.
CHUNK = 1000


@dataclass(frozen=True, slots=True)
class Who:
    """Who did it, and why. Both go into the event, with secrets masked, together with the action it is part of."""

    name: str = ""
    reason: str = ""
    action: int | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "name", storable(str(self.name)))
        object.__setattr__(self, "reason", storable(str(self.reason)))

    @property
    def facts(self) -> dict[str, Any]:
        """The facts for the event."""
        part = {} if self.action is None else {"action": self.action}
        return {**part, "by": self.name, "reason": self.reason}


class ActionPlace(msgspec.Struct, frozen=True, omit_defaults=True):
    """How far an action has come. Items and paid calls added after it began are not included, however long it takes."""

    #: The last item and the last paid call when it began.
    until: int = 0
    until_call: int = 0
    #: Only what is older than this is included.
    before: int | None = None
    #: Continue after this entry of a page.
    after: str = "0"
    #: Or after this item, or this item of this stage.
    stage: int = 0
    item: int = 0
    #: The money and the number of items that are left.
    budget: int | None = None
    limit: int | None = None
    #: Or after this event.
    at: int = 0
    event: int = 0


def beginning(tx: Transaction, which: Which) -> ActionPlace:
    """The place to begin at, before everything that the filter can select now."""
    error_groups.check(tx, which.group)
    [(item, call)] = tx.run("newest_of_all")
    return ActionPlace(item or 0, call or 0, None if which.older_than_us is None else tx.now - which.older_than_us)


class Chosen(NamedTuple):
    """A selected stage of an item."""

    item: int
    stage: int
    state: str


Selected = tuple[list[Chosen], ActionPlace | None]


class Meant(NamedTuple):
    """What an action is about to act on: an item, one of its stages, or a paid call."""

    item: int
    stage: int | None = None
    #: Of the stage.
    state: str | None = None
    #: The name of the call, and what its answer has cost.
    memo: str | None = None
    cost: int | None = None


def means_all_on_hold(which: Which) -> bool:
    """Whether a filter selects everything on hold at some stages, and so also what is still to be put on hold there."""
    return State.ON_HOLD in which.states and not (which.key or which.error or which.older_than_us or which.group)


def choose(tx: Transaction, which: Which, states: frozenset[State], place: ActionPlace) -> Selected:
    """The next stages of items in these states, in the order of items: so an action sees each of them once, whatever state it
    has moved to meanwhile."""
    stages = _stages(tx, which)
    cursor = Cursor.read(place.after)
    page = stages_of_items(tx, replace(which, states=states), stages, cursor, CHUNK)
    number = {(row.pipeline_name, row.name): row.id for row in stages}
    rows = [
        Chosen(row["id"], number[row["pipeline"], row["stage"]], row["state"])
        for row in page
        if row["id"] <= place.until and (place.before is None or row["updated_at"] < place.before)
    ]
    is_last = len(page) < CHUNK or page[-1]["id"] > place.until
    return rows, None if is_last else msgspec.structs.replace(place, after=page[-1]["cursor"])


def some_of(tx: Transaction, which: Which, states: frozenset[State], place: ActionPlace, most: int) -> Some:
    """Up to so many of what is still to be chosen, in no order: item, stage and state."""
    after = Cursor.read(place.after)
    return some_stages_of_items(tx, replace(which, states=states), _stages(tx, which), after, most, place.until)


class Part(NamedTuple):
    """What one chunk looks through: the entries of a stage after an item, up to and including those of another. And the place
    after it; None at the end."""

    stage: int
    after: int
    last: int
    behind: ActionPlace | None


def next_part(tx: Transaction, end_of_entries: str, which: Which, place: ActionPlace) -> Part | None:
    """The next entries, a chunk at most and the others of its last item; None if there are none. The statement counts those of
    a stage. A chunk is bounded by what it looks through, not by what it selects: a filter that selects little is found in as
    many short transactions."""
    stages = sorted(stage for stage in stages_of(tx, which) if stage >= place.stage)
    for stage, following in zip(stages, [*stages[1:], None], strict=True):
        after = place.item if stage == place.stage else 0
        [(count, last)] = tx.run(end_of_entries, stage=stage, item=after, most=CHUNK)
        if count == CHUNK:
            return Part(stage, after, last, msgspec.structs.replace(place, stage=stage, item=last))
        if count:
            behind = None if following is None else msgspec.structs.replace(place, stage=following, item=0)
            return Part(stage, after, last, behind)
    return None


def patterns_of(tx: Transaction, which: Which) -> list[str]:
    """The patterns of keys of a filter, for statements."""
    return [tx.store.driver.dialect.glob_pattern(key) for key in several(which.key) or ("*",)]


def stages_of(tx: Transaction, which: Which) -> list[int]:
    """The numbers of the stages that a filter selects."""
    return [row.id for row in _stages(tx, which)]


def _stages(tx: Transaction, which: Which) -> list[StageRow]:
    known = layout(tx).chosen(which.pipeline, which.stage)
    # A stage that was removed from its pipeline is selected only by name: no worker would run what is sent back to it.
    return [row for row in known if which.stage is not None or row.active]
