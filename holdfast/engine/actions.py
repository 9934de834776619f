"""Actions: what a person does to many items at once. A row says what was asked for and how far it has come.

An action is done in chunks. Each chunk is one transaction that locks the row, acts on the next items, and saves the progress
in the row. So a process that dies between two chunks loses nothing and repeats nothing. Any process may continue the action,
and two that do so at once take turns. Every event of an action carries its number.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import msgspec

from holdfast.engine.delete import Delete
from holdfast.engine.event_pages import read_numbers
from holdfast.engine.forget import Forget, Restore
from holdfast.engine.layout import layout
from holdfast.engine.left_alone import LeftAlone, look_at, named_keys, strike_off
from holdfast.engine.look_ahead import ActionKind, Forecast, look_ahead
from holdfast.engine.plan_and_reprocess import Accept, Reprocess
from holdfast.engine.resolve import Resolve
from holdfast.engine.retry_and_cancel import CancelStages, RetryStages
from holdfast.engine.selection import ActionPlace, Who
from holdfast.engine.undo import Trail, UndoCancel, UndoForget, UndoRestore, UndoRetry, follow
from holdfast.errors import UsageError
from holdfast.model import codec, shapes
from holdfast.model.error_fingerprint import storable
from holdfast.model.log_lines import logger
from holdfast.store import Store, Transaction

log = logger("holdfast.store")


#: A preview counts no more than this.
PREVIEWED = 10_000


_KINDS: Mapping[str, type[Any]] = {
    kind.name: kind for kind in (RetryStages, CancelStages, Forget, Restore, Delete, Resolve, Reprocess, Accept)
}
_UNDOING: Mapping[str, type[Any]] = {kind.name: kind for kind in (UndoCancel, UndoRetry, UndoForget, UndoRestore)}
#: How an action of each kind is undone, or why it cannot be.
_UNDO: Mapping[str, type[Any]] = {
    "cancel": UndoCancel,
    "retry": UndoRetry,
    "reprocess": UndoRetry,
    "forget": UndoForget,
    "restore": UndoRestore,
}
_CANNOT_UNDO = {
    "delete": "what was deleted is gone",
    "resolve": "the ledger keeps the amounts; to reject an unusable answer: holdfast forget",
    "accept": "the versions that made the results are no longer known; to run them again: holdfast reprocess --all",
}


class ActionCounts(dict[str, int]):
    """What an action has done, or would do, as counts by name; and its number, if it has done anything."""

    action: int | None = None
    #: Of a dry run that counts up to a limit: whether there may be more; and at which stages, a few of them, and their cost.
    more: bool = False
    forecast: Forecast = Forecast()


class _Progress(msgspec.Struct, frozen=True, omit_defaults=True):
    """How far an action has come, and the times of its first and latest chunk."""

    place: ActionPlace | None
    since: int
    until: int
    #: The keys it was asked for one by one, without those of items that were chosen.
    not_chosen: list[str] = []
    #: Once it is done: how the items with these keys were.
    left_alone: list[LeftAlone] = []


class Preview(msgspec.Struct, frozen=True):
    """What an action was expected to do when it began; `more` if not all of it was counted."""

    counts: dict[str, int]
    more: bool = False
    #: The number that was shown to the person who confirmed it, if that was all.
    previewed: int | None = None


@dataclass(frozen=True, slots=True)
class Action:
    id: int
    kind: ActionKind
    who: Who
    state: str
    progress: _Progress
    created_at: int
    touched_at: int
    preview: Preview = field(default_factory=lambda: Preview({}))
    counts: dict[str, int] = field(default_factory=dict)
    ended_at: int | None = None
    error: str | None = None
    #: Whether this call has begun it, and not an earlier one of the same request.
    was_begun_now: bool = False

    @property
    def is_open(self) -> bool:
        return self.state == "open"

    @property
    def changed(self) -> int | None:
        """How much of what was previewed it has not acted on, once it is done. Counts of what was deleted include children."""
        if self.preview.previewed is None or self.state != "done":
            return None
        done, meant = sum(self.counts.values()), sum(self.preview.counts.values())
        return max(0, self.preview.previewed - (done if self.preview.more else min(done, meant)))

    @property
    def trail(self) -> Trail:
        return Trail(self.id, self.kind.event, self.progress.since, self.progress.until)

    def told(self) -> dict[str, Any]:
        """What is shown to people."""
        undoes = _undone(self.kind)
        asked = _plain(msgspec.json.decode(_to_text(self.kind))) if undoes is None else {}
        return {
            "id": self.id,
            "kind": self.kind.name,
            "filter": asked,
            "undoes": undoes,
            "by": self.who.name,
            "reason": self.who.reason,
            "state": self.state,
            "preview": msgspec.to_builtins(self.preview),
            "counts": self.counts,
            "changed": self.changed,
            "created_at": self.created_at,
            "touched_at": self.touched_at,
            "ended_at": self.ended_at,
            "error": self.error,
        }


# Doing one ------------------------------------------------------------------------------------------------------------


def act(store: Store, kind: ActionKind, who: Who, previewed: int | None = None) -> ActionCounts:
    """Do what was asked for, as an action. If there is nothing to do, no action is recorded."""
    action = store.write(lambda tx: begin(tx, kind, who, previewed=previewed))
    if action is None:
        return ActionCounts()
    if not action.is_open:
        return _counts(action)
    with _noted(action.id):
        _foresee(store, action)
    return drive(store, action.id)


def begin_once(store: Store, kind: ActionKind, who: Who, request: str, previewed: int | None = None) -> ActionCounts:
    """Begin what was asked for, unless an action of this request exists: then nothing is done. Returns what it has done so far;
    `drive` does the rest."""
    action = store.write(lambda tx: begin(tx, kind, who, request, previewed))
    if action is None:
        return ActionCounts()
    if action.is_open and action.was_begun_now:
        with _noted(action.id):
            _foresee(store, action)
    return _counts(action)


def count(store: Store, kind: ActionKind, most: int | None = None) -> ActionCounts:
    """What it would do, counted up to a limit. Only reads."""
    seen = look_ahead(store, kind, store.read(kind.begin), most)
    told = ActionCounts(seen.counts)
    told.more = seen.more
    if most is not None:
        told.forecast = store.read(seen.forecast)
    return told


def drive(store: Store, number: int) -> ActionCounts:
    """Continue an action until it is done or stopped; return everything it has done."""
    store.read(lambda tx: _find(tx, number))
    with _noted(number):
        while (action := store.write(lambda tx: step(tx, number))).is_open:
            pass
    return _counts(action)


def _counts(action: Action) -> ActionCounts:
    counts = ActionCounts(action.counts)
    counts.action = action.id
    return counts


@contextmanager
def _noted(number: int) -> Iterator[None]:
    """Add a note to any error that interrupts an action: what becomes of it."""
    try:
        yield
    except BaseException as error:
        error.add_note(
            f"action {number} stays open, and what it has done is saved: a worker goes on with it, or "
            f"holdfast actions {number} --continue; to end it there: holdfast actions {number} --stop"
        )
        raise


def step(tx: Transaction, number: int) -> Action:
    """Do the next chunk of an action, if it is open."""
    action = _find(tx, number, "lock_action")
    return _advance(tx, action) if action.is_open else action


def take_up(tx: Transaction, number: int, touched_at: int) -> Action | None:
    """The same, unless another process works on it or has done so since that time."""
    rows = tx.records("lock_idle_action", id=number, touched_at=touched_at)
    return _advance(tx, _read(rows[0])) if rows else None


def idle(tx: Transaction, before: int, mine: Action | None) -> tuple[int, int] | None:
    """An open action that no process has worked on since then, or the caller's own; and when it was last worked on."""
    own = {"mine": 0, "touched_at": 0} if mine is None else {"mine": mine.id, "touched_at": mine.touched_at}
    rows = tx.run("find_idle_action", kinds=sorted(_KINDS), before=before, now=tx.now, **own)
    return (rows[0][0], rows[0][1]) if rows else None


def begin(
    tx: Transaction, kind: ActionKind, who: Who, request: str | None = None, previewed: int | None = None
) -> Action | None:
    """Start an action and do its first chunk, which is all there is to do for most. If there is one of this request, return
    that one as it is."""
    place = kind.begin(tx)
    added = tx.run(
        "add_action",
        kind=kind.name,
        filter=_to_text(kind),
        undoes=_undone(kind),
        who=who.name,
        reason=who.reason,
        now=tx.now,
        request=request,
    )
    if not added:
        [row] = tx.records("read_action_of_request", request=request)
        return _read(row)
    [(number,)] = added
    progress = _Progress(place, tx.now, tx.now, named_keys(kind))
    preview = Preview({}, previewed=previewed)
    first = Action(number, kind, who, "open", progress, tx.now, tx.now, preview, was_begun_now=True)
    action = _advance(tx, first, is_first=True)
    if not action.is_open and not action.counts:
        tx.is_for_nothing = True
        return None
    return action


def _advance(tx: Transaction, action: Action, *, is_first: bool = False) -> Action:
    was = action.progress
    assert was.place is not None
    rows, place = action.kind.choose(tx, was.place)
    preview = action.preview
    if is_first:
        preview = Preview(dict(action.kind.count(tx, rows)), place is not None, preview.previewed)
    not_chosen = strike_off(tx, was.not_chosen, action.kind.meant(rows)) if was.not_chosen else []
    left_alone = look_at(tx, action.kind, not_chosen) if place is None else []
    done = action.kind.act(tx, rows, replace(action.who, action=action.id))
    over: dict[str, Any] = {"state": "done", "ended_at": tx.now} if place is None else {}
    now = replace(
        action,
        progress=_Progress(place, min(was.since, tx.now), max(was.until, tx.now), not_chosen, left_alone),
        preview=preview,
        counts=dict(Counter(action.counts) + done),
        touched_at=tx.now,
        **over,
    )
    tx.run(
        "save_action",
        id=now.id,
        state=now.state,
        place=_to_text(now.progress),
        preview=_to_text(preview),
        counts=_to_text(now.counts),
        touched_at=tx.now,
        ended_at=now.ended_at,
    )
    return now


def _foresee(store: Store, action: Action) -> None:
    """Count what is left to do, up to a limit, so that progress can be shown."""
    place = action.progress.place
    assert place is not None
    rest = look_ahead(store, action.kind, place, PREVIEWED - sum(action.preview.counts.values()))
    counts = Counter(action.preview.counts) + rest.counts
    text = _to_text(Preview(dict(counts), rest.more, action.preview.previewed))
    store.write(lambda tx: tx.run("save_preview", id=action.id, preview=text))


# What a person asks of one --------------------------------------------------------------------------------------------


def stop(tx: Transaction, number: int, who: Who, error: str | None = None) -> bool:
    """Stop an open action; what it has done stays done. False if it was not open."""
    if not tx.run("stop_action", id=number, now=tx.now, error=error and storable(error)):
        return False
    tx.record("action_stopped", **replace(who, action=number).facts)
    return True


def undoing(tx: Transaction, number: int) -> ActionKind:
    """The action that undoes one that has ended."""
    action = _find(tx, number)
    name = action.kind.name
    if name in _CANNOT_UNDO:
        raise UsageError(f"action {number}, {name}, cannot be undone: {_CANNOT_UNDO[name]}")
    if action.is_open:
        raise UsageError(f"action {number} is still open: stop it first (holdfast actions {number} --stop)")
    kind: ActionKind = _UNDO[name](action.trail)
    return kind


def actions(tx: Transaction, *, only_open: bool = False, before: int = 2**62, most: int) -> list[dict[str, Any]]:
    """The newest actions with numbers below `before`, newest first."""
    told = []
    for row in tx.records("list_actions", only_open=int(only_open), before=before, most=most):
        try:
            told.append(_read(row).told())
        except UsageError as error:
            log.warning("%s", error)
    return told


def action(tx: Transaction, number: int, *, after: str = "", most: int) -> dict[str, Any]:
    """One action, and a page of what it did to which item, in order. The next page comes after its `cursor`."""
    found = _find(tx, number)
    moved, behind = follow(tx, found.trail, _place(after), most)
    known = layout(tx)
    names = {row.id: row.name for row in known.pipelines.values()}
    keys = {row["id"]: row for row in tx.records("read_items", items=sorted({one.item for one in moved if one.item}))}
    return {
        **found.told(),
        "items": [
            {
                "at": one.at,
                "pipeline": names.get(keys[one.item]["pipeline"]) if one.item in keys else None,
                "key": keys[one.item]["key"] if one.item in keys else None,
                "stage": known.stages[one.stage].name if one.stage in known.stages else None,
                "event": found.kind.event,
                "cursor": f"{one.at}/{one.id}",
                "data": {name: value for name, value in one.facts.items() if name not in ("action", "by", "reason")},
            }
            for one in moved
        ],
        "cursor": None if behind is None else f"{behind.at}/{behind.event}",
        "left_alone": msgspec.to_builtins(found.progress.left_alone),
    }


def _place(cursor: str) -> ActionPlace:
    at, event = read_numbers(cursor or "0/0", 2)
    return ActionPlace(at=at, event=event)


# Rows -----------------------------------------------------------------------------------------------------------------


def _find(tx: Transaction, number: int, statement: str = "read_action") -> Action:
    rows = tx.records(statement, id=number)
    if not rows:
        raise UsageError(f"there is no action {number}")
    return _read(rows[0])


def _read(row: dict[str, Any]) -> Action:
    kinds = _KINDS if row["undoes"] is None else _UNDOING
    if row["kind"] not in kinds:
        raise UsageError(
            f"action {row['id']}, {row['kind']}, is of a kind that this holdfast does not know: use a newer one"
        )
    try:
        return Action(
            row["id"],
            msgspec.json.decode(row["filter"], type=kinds[row["kind"]]),
            Who(row["who"], row["reason"]),
            row["state"],
            msgspec.json.decode(row["place"], type=_Progress),
            row["created_at"],
            row["touched_at"],
            msgspec.json.decode(row["preview"], type=Preview),
            codec.stored(row["counts"], {}, shapes.COUNTS),
            row["ended_at"],
            row["error"],
        )
    except (msgspec.DecodeError, TypeError, UsageError) as error:
        raise UsageError(f"action {row['id']}, {row['kind']}, cannot be read: {error}") from None


def _undone(kind: ActionKind) -> int | None:
    """The action that this one undoes."""
    trail: Trail | None = getattr(kind, "undoes", None)
    return None if trail is None else trail.action


def _to_text(value: Any) -> str:
    return msgspec.json.encode(value).decode()


def _plain(asked: dict[str, Any]) -> dict[str, Any]:
    """What was asked for, without defaults; an age in seconds."""
    flat = {**asked.pop("which", {}), **asked}
    if (age := flat.pop("older_than_us", None)) is not None:
        flat["older_than"] = age / 1e6
    flat["states"] = sorted(flat.get("states", ()))
    return {name: value for name, value in flat.items() if value not in (None, [])}
