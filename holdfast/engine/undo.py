"""Undo: move back exactly what an action has moved, unless it has changed since.

The events of an action say what it did to which stage of which item; an undo is an action of the opposite kind that walks
through them. What a person, a worker or a source has done to such a stage afterwards is kept.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

from msgspec.structs import replace

from holdfast.engine.forget import MemoRow, Rejecting, Restoring
from holdfast.engine.item_stages import read_item_stages
from holdfast.engine.on_hold import hold
from holdfast.engine.retry_and_cancel import reopen, set_aside
from holdfast.engine.selection import CHUNK, ActionPlace, Chosen, Meant, Who
from holdfast.model import codec
from holdfast.model.history import MEANING
from holdfast.model.states import FINISHED, State
from holdfast.store import Transaction


@dataclass(frozen=True, slots=True)
class Trail:
    """The events of an action: their name, and the period in which it ran."""

    action: int
    event: str
    since: int
    until: int


class MovedStage(NamedTuple):
    """What an action did to a stage of an item."""

    id: int
    at: int
    item: int
    stage: int
    facts: dict[str, Any]


def follow(
    tx: Transaction, trail: Trail, place: ActionPlace, most: int = CHUNK
) -> tuple[list[MovedStage], ActionPlace | None]:
    """The next events of a trail."""
    rows = tx.run(
        "action_events",
        event=trail.event,
        mark=f'"action":{trail.action},',
        at=max(place.at, trail.since),
        until=trail.until,
        after=place.event,
        most=most,
    )
    found = [MovedStage(id_, at, item, stage, codec.stored(data, {})) for id_, at, item, stage, data in rows]
    return found, None if len(rows) < most else replace(place, at=found[-1].at, event=found[-1].id)


class _Back(NamedTuple):
    """A stage of an item that is still in the state in which an action left it, and its state before."""

    item: int
    stage: int
    state: str
    was: str


@dataclass(frozen=True, slots=True)
class _Undo:
    """An action that walks through the events of another."""

    undoes: Trail

    def begin(self, tx: Transaction) -> ActionPlace:
        return ActionPlace()


@dataclass(frozen=True, slots=True)
class UndoCancel(_Undo):
    """Send back what was cancelled. What was on hold before is put on hold again."""

    name: ClassVar[str] = "retry"
    event: ClassVar[str] = "retried"

    def choose(self, tx: Transaction, place: ActionPlace) -> tuple[list[_Back], ActionPlace | None]:
        moved, behind = follow(tx, self.undoes, place)
        return _unmoved(tx, moved, lambda one: str(one.facts.get("stays", State.CANCELLED))), behind

    def count(self, tx: Transaction, rows: list[_Back]) -> Counter[str]:
        return Counter(row.state for row in rows)

    def meant(self, rows: list[_Back]) -> list[Meant]:
        return [Meant(row.item, row.stage, row.state) for row in rows]

    def act(self, tx: Transaction, rows: list[_Back], who: Who) -> Counter[str]:
        count = reopen(tx, [Chosen(*row[:3]) for row in rows], who)
        _hold_again(tx, rows, who)
        return count


@dataclass(frozen=True, slots=True)
class UndoRetry(_Undo):
    """Withdraw what was sent back and has not begun: the earlier outcome counts again, and what was on hold is put on hold
    again. What waited for its next attempt would have run anyway, and is left alone."""

    name: ClassVar[str] = "cancel"
    event: ClassVar[str] = "cancelled"

    def choose(self, tx: Transaction, place: ActionPlace) -> tuple[list[_Back], ActionPlace | None]:
        moved, behind = follow(tx, self.undoes, place)
        waiting = _unmoved(tx, moved, lambda _: str(State.PENDING))
        return [row for row in waiting if row.was != State.RETRY_LATER], behind

    def count(self, tx: Transaction, rows: list[_Back]) -> Counter[str]:
        return Counter(row.state for row in rows)

    def meant(self, rows: list[_Back]) -> list[Meant]:
        return [Meant(row.item, row.stage, row.state) for row in rows]

    def act(self, tx: Transaction, rows: list[_Back], who: Who) -> Counter[str]:
        held = _hold_again(tx, rows, who)
        ended = [Chosen(*row[:3]) for row in rows if row.was != State.ON_HOLD]
        return set_aside(tx, ended, who, FINISHED) + Counter({str(State.PENDING): held})


@dataclass(frozen=True, slots=True)
class UndoForget(_Undo, Restoring):
    """Restore rejected answers."""

    def choose(self, tx: Transaction, place: ActionPlace) -> tuple[list[MemoRow], ActionPlace | None]:
        return _memos(tx, self.undoes, "rejected", place)


@dataclass(frozen=True, slots=True)
class UndoRestore(_Undo, Rejecting):
    """Reject restored answers again."""

    def choose(self, tx: Transaction, place: ActionPlace) -> tuple[list[MemoRow], ActionPlace | None]:
        return _memos(tx, self.undoes, "done", place)


def _unmoved(tx: Transaction, moved: Iterable[MovedStage], now: Callable[[MovedStage], str]) -> list[_Back]:
    """Those that nothing has moved since, and that are still in the state in which they were left."""
    by_place = {(one.item, one.stage): one for one in moved}
    items = sorted({item for item, _ in by_place})
    if not items:
        return []
    newest = {(item, stage): id_ for item, stage, id_ in tx.run("latest_moves", items=items, events=sorted(MEANING))}
    states = {
        (row["item"], row["stage"]): row["state"]
        for row in read_item_stages(tx, items, sorted({s for _, s in by_place}))
    }
    return [
        _Back(one.item, one.stage, now(one), one.facts["was"])
        for place, one in by_place.items()
        if newest.get(place) == one.id and states.get(place) == now(one)
    ]


def _hold_again(tx: Transaction, rows: Iterable[_Back], who: Who) -> int:
    """Put waiting work that was on hold before on hold again."""
    items: dict[int, list[int]] = {}
    for row in rows:
        if row.was == State.ON_HOLD:
            items.setdefault(row.stage, []).append(row.item)
    facts = {**who.facts, "reason": who.reason or "it was on hold before"}
    return sum(hold(tx, stage, held, "person", **facts) for stage, held in sorted(items.items()))


def _memos(tx: Transaction, trail: Trail, state: str, place: ActionPlace) -> tuple[list[MemoRow], ActionPlace | None]:
    """The answers that are still as the action left them, at the time of its event."""
    moved, behind = follow(tx, trail, place)
    left = {(one.stage, one.item, one.facts["memo"], one.at) for one in moved}
    rows = [
        memo
        for stage in sorted({one.stage for one in moved})
        for memo in tx.records(
            "memos_of", state=state, stage=stage, items=sorted({one.item for one in moved if one.stage == stage})
        )
    ]
    return [memo for memo in rows if (memo["stage"], memo["item"], memo["name"], memo["at"]) in left], behind
