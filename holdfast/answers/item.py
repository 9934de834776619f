"""Items: a list of them, or all about one."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta
from decimal import Decimal
from typing import Any, ClassVar, Self

from msgspec.structs import replace

from holdfast.answers.answer import Answer, Answers, attributes, named
from holdfast.answers.event import facts_of
from holdfast.answers.from_facts import read
from holdfast.answers.paid_call import Ledger, Memos
from holdfast.answers.text_tables import compact, details, exact, iso, shortened, spoken, table, to_the_second
from holdfast.answers.worker import ProgressNote
from holdfast.model.log_lines import printable
from holdfast.model.redact import redact_value

#: What of an entry of a history is not in its `data`.
_COLUMNS = ("at", "event", "stage", "amount", "resource")


class ListedItem(Answer, frozen=True):
    """An item of a list or, in a list of stages of items, one stage of it; what belongs to the other kind of list is None."""

    _brief: ClassVar = ("pipeline", "key", "status", "stage", "state", "error")

    id: int
    #: The next page begins after this.
    cursor: str
    pipeline: str
    key: str
    #: Of a whole item: the state of its stages taken together.
    status: str | None
    #: Of a stage of an item.
    stage: str | None
    state: str | None
    attempts: int | None
    next_attempt_at: datetime | None
    error: str | None
    #: Of its result: the version of the code that made it.
    version: str | None
    #: What its paid calls have cost so far, in all attempts.
    cost: Decimal | None
    created_at: datetime | None
    updated_at: datetime


class Items(Answers[ListedItem]):
    """A page of items, in the order they were added."""

    #: The next page begins after this; None if there is none.
    cursor: str | None = None
    #: Of a list narrowed by attempts, version, cost, time or a part of an error: how many stages of items were looked at, and
    #: items passed over, to find these.
    looked_at: int | None = None

    @classmethod
    def page(cls, found: Iterable[Mapping[str, Any]], cursor: str | None, looked_at: int | None) -> Self:
        made = cls.of(found)
        made.cursor, made.looked_at = cursor, looked_at
        return made

    def lines(self, width: int | None = None) -> list[str]:
        if not any(one.stage for one in self):
            rows = [[one.id, one.pipeline, one.key, one.status, to_the_second(one.updated_at)] for one in self]
            return table(["id", "pipeline", "key", "status", "updated"], rows, width=width, least=("updated",))
        rows = [
            [
                one.id,
                f"{one.pipeline}/{one.stage}",
                one.key,
                one.state,
                one.attempts,
                to_the_second(one.updated_at),
                shortened(one.error or "", 100),
            ]
            for one in self
        ]
        head = ["id", "stage", "key", "state", "attempts", "updated", "error"]
        return table(head, rows, width=width, least=("updated", "attempts"))


class StageLease(Answer, frozen=True):
    """Who holds a stage of an item."""

    _brief: ClassVar = ("worker", "since", "alive")

    #: The name of the worker; None if it is dead, and the stage about to be freed.
    worker: str | None
    process: str | None
    #: False if it has been silent for too long: others take over its work.
    alive: bool
    since: datetime
    attempt: int
    #: What its handler last reported.
    progress: ProgressNote | None


class PreviousResult(Answer, frozen=True):
    """The result that the present one has replaced, of a stage that keeps it (`keep_previous`)."""

    _brief: ClassVar = ("version", "ended_at")

    result: Any
    #: The version of the code that made it.
    version: str | None
    ended_at: datetime


class StageOfItem(Answer, frozen=True):
    """Where an item stands at a stage of its pipeline."""

    _brief: ClassVar = ("stage", "state", "attempts", "error")

    stage: str
    #: None if it has not begun.
    state: str | None
    attempts: int
    started_at: datetime | None
    ended_at: datetime | None
    #: From the beginning of its last attempt to its end.
    elapsed: timedelta | None
    next_attempt_at: datetime | None
    error: str | None
    error_group: str | None
    updated_at: datetime | None
    #: Of its result: the version of the code that made it.
    version: str | None
    result: Any
    has_result: bool
    #: None if there was none, or it is not kept.
    previous: PreviousResult | None
    #: What its paid calls have cost so far, in all attempts.
    cost: Decimal
    #: While it is in progress.
    lease: StageLease | None

    @classmethod
    def of(cls, facts: Mapping[str, Any]) -> Self:
        return read(cls, facts, has_result="result" in facts)

    def lines(self, width: int | None = None) -> list[str]:
        attempts = f", attempt {self.attempts}" if self.attempts else ""
        lines = [f"{self.stage}: {self.state or 'not begun'}{attempts}"]
        if self.ended_at:
            took = "" if self.elapsed is None else f", took {spoken(self.elapsed)}"
            lines.append(f"  ended {iso(self.ended_at)}{took}")
        if self.lease:
            lines.append(
                f"  held since {iso(self.lease.since)} by {printable(self.lease.worker or 'a worker that is dead')}"
            )
        if self.next_attempt_at:
            lines.append(f"  next attempt {iso(self.next_attempt_at)}")
        if self.error:
            lines.append(f"  error {printable(self.error)}")
        if self.cost:
            lines.append(f"  cost {exact(self.cost)}")
        if self.has_result:
            lines.append(f"  result {compact(self.result)}")
        if self.previous:
            version = "" if self.previous.version is None else f"version {printable(self.previous.version)}, "
            ended = iso(self.previous.ended_at)
            lines.append(f"  previous result ({version}ended {ended}) {compact(self.previous.result)}")
        return lines


class HistoryEntry(Answer, frozen=True):
    """Something that happened to an item: an event, an outcome that left none, or a payment."""

    _brief: ClassVar = ("at", "event", "stage")

    at: datetime
    event: str
    stage: str | None
    amount: Decimal | None
    resource: str | None
    #: Its other facts, by name.
    data: Mapping[str, Any]

    @classmethod
    def of(cls, facts: Mapping[str, Any]) -> Self:
        rest = {name: value for name, value in facts.items() if name not in _COLUMNS}
        return read(cls, facts, data=facts_of(facts["event"], rest))

    def lines(self, width: int | None = None) -> list[str]:
        where = f" ({self.stage})" if self.stage else ""
        money = {} if self.amount is None else {"amount": exact(self.amount), "resource": self.resource}
        rest = {name: value for name, value in self.data.items() if name != "traceback"}
        return [f"{iso(self.at)}  {self.event}{where}{details(rest | money)}"]


class History(Answers[HistoryEntry]):
    """All that happened to an item, oldest first."""

    __slots__ = ()


class ItemDetails(Answer, frozen=True):
    """All about one item."""

    _brief: ClassVar = ("pipeline", "key", "status")

    #: Its number in the store.
    id: int
    pipeline: str
    key: str
    status: str
    data: Any
    priority: int
    created_at: datetime
    updated_at: datetime
    stages: tuple[StageOfItem, ...]
    history: History
    calls: Ledger
    memos: Memos

    @classmethod
    def of(cls, facts: Mapping[str, Any]) -> Self:
        states = {one["stage"]: one["state"] for one in facts["stages"]}
        return read(cls, facts, memos=Memos.of_item(facts, facts["memos"], states))

    def stage(self, name: str) -> StageOfItem:
        """Where it stands at one stage."""
        return named("stage", name, {one.stage: one for one in self.stages})

    def without_secrets(self) -> ItemDetails:
        """The same with *** in place of what looks like a secret."""
        masked: ItemDetails = _masked(self)
        return masked

    def lines(self, width: int | None = None) -> list[str]:
        lines = [
            f"{self.pipeline} / {printable(self.key)}: {self.status}",
            f"added {iso(self.created_at)}, updated {iso(self.updated_at)}, priority {self.priority}",
            f"data {compact(self.data)}",
            *(line for one in self.stages for line in one.lines()),
        ]
        for head, part in (("memos", self.memos), ("paid calls", self.calls), ("history", self.history)):
            if part:
                lines += [head, *(f"  {line}" for line in part.lines())]
        return lines


def _masked(value: Any) -> Any:
    if isinstance(value, Answer):
        return replace(value, **{name: _masked(one) for name, one in attributes(value).items()})
    return type(value)(map(_masked, value)) if isinstance(value, tuple) else redact_value(value)
