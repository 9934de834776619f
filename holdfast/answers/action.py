"""Actions: what was done to many items at once, and how far it has come."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any, ClassVar, Self

from holdfast.answers.answer import Answer, Answers
from holdfast.answers.event import event_line, facts_of
from holdfast.answers.from_facts import read
from holdfast.answers.text_tables import counted, in_words, table, to_the_second
from holdfast.answers.units import amount
from holdfast.model.log_lines import printable

#: What of a filter is money.
_MONEY = ("budget", "charged")


class ActionPreview(Answer, frozen=True):
    """What an action was going to do when it began."""

    _brief: ClassVar = ("counts", "more")

    counts: Mapping[str, int]
    #: Whether there was more than was counted.
    more: bool
    #: How many were shown to the person who confirmed it; None if not all of it was counted, or nobody was asked.
    previewed: int | None

    def __str__(self) -> str:
        return f"{sum(self.counts.values()):,}{' or more' if self.more else ''}"


class ActionRecord(Answer, frozen=True):
    """An action: what was asked for, by whom and why, and what it has done."""

    _brief: ClassVar = ("id", "kind", "state", "counts")

    id: int
    kind: str
    #: What was asked for, by name.
    filter: Mapping[str, Any]
    #: The action that this one undoes.
    undoes: int | None
    by: str
    reason: str
    #: `open`, `done` or `stopped`.
    state: str
    preview: ActionPreview
    counts: Mapping[str, int]
    #: How much of what was previewed it has not acted on, since that had changed meanwhile; None before it is done.
    changed: int | None
    created_at: datetime
    #: When somebody last went on with it.
    touched_at: datetime
    ended_at: datetime | None
    error: str | None

    @classmethod
    def of(cls, facts: Mapping[str, Any]) -> Self:
        return read(cls, facts, filter=filter_of(facts["filter"]))

    @property
    def asked_for(self) -> str:
        """The filter as one line."""
        return asked_for(self.filter, self.undoes)

    @property
    def compared(self) -> str | None:
        """What was previewed, in words, and what had changed when it was done; None if nothing was."""
        previewed, meant = self.preview.previewed, sum(self.preview.counts.values())
        if previewed is None:
            return None
        if self.changed:
            return f"previewed {previewed:,}, {self.changed:,} had changed meanwhile"
        more = f", {meant - previewed:,}{' or' if self.preview.more else ''} more matched when it began"
        return f"previewed {previewed:,}{more if meant > previewed else ''}"

    def lines(self, width: int | None = None) -> list[str]:
        reason = f": {printable(self.reason)}" if self.reason else ""
        ended = f", last seen at {to_the_second(self.touched_at)}"
        if self.ended_at:
            ended = f", ended {to_the_second(self.ended_at)}"
        done = f"{sum(self.counts.values()):,} ({counted(self.counts) or 'nothing'})"
        lines = [
            f"action {self.id}: {self.kind}, {self.state}",
            f"  asked for: {self.asked_for}",
            f"  by {printable(self.by) or 'nobody named'}{reason}",
            f"  begun {to_the_second(self.created_at)}{ended}",
            f"  when it began it meant {self.preview}; done: {done}",
            *([] if self.compared is None else [f"  {self.compared}"]),
        ]
        if self.error:
            lines.append(f"  {printable(self.error)}")
        if self.state == "open":
            ways = f"to go on: holdfast actions {self.id} --continue; to end it: holdfast actions {self.id} --stop"
            lines.append(f"  {ways}")
        return lines


class ActionList(Answers[ActionRecord]):
    """Actions, newest first."""

    __slots__ = ()

    def lines(self, width: int | None = None) -> list[str]:
        if not self:
            return ["There is none."]
        rows = [
            [
                one.id,
                one.kind,
                one.state,
                f"{sum(one.counts.values()):,}",
                one.preview,
                one.by,
                to_the_second(one.created_at),
                one.asked_for,
            ]
            for one in self
        ]
        head = ["id", "kind", "state", "done", "of", "by", "begun", "asked for"]
        return table(head, rows, width=width, right=("done", "of"), least=("begun", "by", "of"))


class ActedOn(Answer, frozen=True):
    """What an action did to one item."""

    _brief: ClassVar = ("at", "pipeline", "key", "stage", "event")

    at: datetime
    pipeline: str | None
    #: None if the item was deleted since.
    key: str | None
    stage: str | None
    event: str
    #: A page that comes after this one begins behind it.
    cursor: str
    data: Mapping[str, Any]

    @classmethod
    def of(cls, facts: Mapping[str, Any]) -> Self:
        return read(cls, facts, data=facts_of(facts["event"], facts["data"]))

    def lines(self, width: int | None = None) -> list[str]:
        return [event_line(self.at, self.event, (self.pipeline, self.stage), self.key, self.data)]


class LeftAlone(Answer, frozen=True):
    """An item that an action was asked for by its key and has not acted on, as it was when the action was done."""

    _brief: ClassVar = ("pipeline", "key", "states")

    key: str
    #: None if there was no such item.
    pipeline: str | None
    #: The state of each stage that was meant and had begun.
    states: Mapping[str, str]

    @property
    def outcome(self) -> str:
        """Why it was left alone, in words."""
        if self.pipeline is None:
            return "deleted, or never there"
        was = ", ".join(f"{printable(stage)} was {state.replace('_', ' ')}" for stage, state in self.states.items())
        return was or "had not begun"

    def lines(self, width: int | None = None) -> list[str]:
        return [f"  not acted on: {printable(self.key)}: {self.outcome}"]


class ActionDetails(ActionRecord, frozen=True):
    """An action with a page of what it did to which item."""

    items: tuple[ActedOn, ...]
    #: The next page begins after this; None if there is none.
    cursor: str | None
    #: Of items that were asked for one by one, up to 1,000: those that it has not acted on.
    left_alone: tuple[LeftAlone, ...]

    def lines(self, width: int | None = None) -> list[str]:
        parts = (*self.left_alone, *self.items)
        return [*ActionRecord.lines(self, width), *(line for one in parts for line in one.lines(width))]


def filter_of(facts: Mapping[str, Any]) -> dict[str, Any]:
    """What was asked for, with lengths of time and amounts in place of numbers."""
    return {name: _asked(name, value) for name, value in facts.items()}


def asked_for(filter: Mapping[str, Any], undoes: int | None) -> str:
    """What was asked for, as one line."""
    if undoes is not None:
        return f"undo of action {undoes}"
    return ", ".join(f"{name}={printable(_shown(value))}" for name, value in filter.items()) or "everything"


def _asked(name: str, value: Any) -> Any:
    if name in _MONEY:
        return amount(value)
    return timedelta(seconds=value) if name == "older_than" else value


def _shown(value: Any) -> str:
    return " ".join(map(in_words, value)) if isinstance(value, list) else in_words(value)
