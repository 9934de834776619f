"""Events: what happened, as the log has it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime
from decimal import Decimal
from typing import Any, ClassVar, Self

from holdfast.answers.answer import Answer, Answers
from holdfast.answers.from_facts import read
from holdfast.answers.text_tables import details, exact, iso
from holdfast.answers.units import amount, instant
from holdfast.model.log_lines import printable
from holdfast.model.user_event import is_user_event

#: The facts of our own events that are instants, and amounts of money.
_INSTANTS = ("until", "due_at", "looked_at", "next_look_at", "next_attempt_at")
_MONEY = ("counted",)
#: Their facts come from elsewhere, and are left as they are: those of a payment are the handler's.
_FOREIGN = ("cost", "legacy_event")


def facts_of(event: str, data: Mapping[str, Any]) -> dict[str, Any]:
    """The facts of an event, with instants and amounts in place of numbers."""
    if is_user_event(event) or event in _FOREIGN:
        return dict(data)
    return {name: _fact(name, value) for name, value in data.items()}


def _fact(name: str, value: Any) -> Any:
    if isinstance(value, bool) or not isinstance(value, int):
        return value
    if name in _INSTANTS:
        return instant(value)
    if name == "worker":
        # As workers are listed.
        return format(value, "x")
    return amount(value) if name in _MONEY else value


def event_line(at: datetime, event: str, where: Iterable[str | None], key: str | None, facts: Mapping[str, Any]) -> str:
    """An event as it is printed: when, what, where, of which item, and its facts."""
    place = "/".join(part for part in where if part)
    return f"{iso(at)}  {event}{place and f'  {place}'}{'' if key is None else f'  {printable(key)}'}{details(facts)}"


class LoggedEvent(Answer, frozen=True):
    """A fact of the log. What belongs to no pipeline, item or stage has None there."""

    _brief: ClassVar = ("id", "at", "event", "pipeline", "item", "stage")

    id: int
    at: datetime
    event: str
    pipeline: str | None
    #: The key of the item.
    item: str | None
    stage: str | None
    amount: Decimal | None
    resource: str | None
    #: Its other facts, by name.
    data: Mapping[str, Any]

    @classmethod
    def of(cls, facts: Mapping[str, Any]) -> Self:
        return read(cls, facts, data=facts_of(facts["event"], facts["data"]))

    def lines(self, width: int | None = None) -> list[str]:
        money = {} if self.amount is None else {"amount": exact(self.amount), "resource": self.resource}
        rest = money | {name: value for name, value in self.data.items() if name != "traceback"}
        return [event_line(self.at, self.event, (self.pipeline, self.stage), self.item, rest)]


class Events(Answers[LoggedEvent]):
    """Events, oldest first."""

    __slots__ = ()


class EventPage(Answer, frozen=True):
    """A page of events, newest first. It may have few, or none, where much was looked through: the next one goes on."""

    _brief: ClassVar = ("events", "cursor")

    events: tuple[LoggedEvent, ...]
    #: The next page begins after this; None if there is none.
    cursor: str | None

    def lines(self, width: int | None = None) -> list[str]:
        return [line for one in self.events for line in one.lines(width)]


class EventCount(Answer, frozen=True):
    """How many events there are of a name."""

    _brief: ClassVar = ("event", "count", "more")

    event: str
    count: int
    #: Whether there are more than were counted.
    more: bool

    def lines(self, width: int | None = None) -> list[str]:
        return [f"{self.count:>9,}  {self.event}{' (and more)' if self.more else ''}"]


class EventCounts(Answers[EventCount]):
    """How many events there are, by name."""

    __slots__ = ()
