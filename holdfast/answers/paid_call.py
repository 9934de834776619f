"""Paid calls of an item: the rows of the ledger, and the memos of sub-steps that are recorded or in doubt."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import date, datetime
from decimal import Decimal
from typing import Any, ClassVar, Self

from holdfast.answers.answer import Answer, Answers
from holdfast.answers.from_facts import read
from holdfast.answers.text_tables import compact, exact, iso
from holdfast.model import codec
from holdfast.model.log_lines import printable
from holdfast.model.shell_quoting import word
from holdfast.model.states import State


class LedgerEntry(Answer, frozen=True):
    """A paid call, with what it has cost or may have cost."""

    _brief: ClassVar = ("id", "at", "stage", "name", "state", "amount")

    id: int
    at: datetime
    #: In the time zone of the resource.
    day: date
    stage: str | None
    #: Of the sub-step; empty for an amount that a handler reported with `ctx.cost`.
    name: str
    #: `intended`, `done`, `rejected`, `doubtful` or `not_charged`.
    state: str
    #: What it cost or, while that is not known, what it was expected to cost.
    amount: Decimal
    resource: str
    model: str
    tokens_in: int
    tokens_out: int
    #: A part of `tokens_in`.
    tokens_cached: int
    #: A part of `tokens_out`.
    tokens_reasoning: int
    #: What else the handler reported about it.
    facts: Any
    reason: str | None
    #: Its answer, if it was rejected.
    value: Any
    #: The first entry of a call for several items, each of which bears a share; None for a call for one item.
    share_of: int | None

    @classmethod
    def of(cls, facts: Mapping[str, Any]) -> Self:
        return read(cls, facts, facts=_shown(facts["facts"]), value=_shown(facts["value"]))

    def lines(self, width: int | None = None) -> list[str]:
        reason = f": {self.reason}" if self.reason else ""
        answer = "" if self.value is None else f", answer {compact(self.value)}"
        name = self.name or "reported by the handler"
        call = printable(f"{name}, {exact(self.amount)} {self.state}{reason}")
        return [f"{iso(self.at)}  {self.stage}: {call}{answer}"]


class Ledger(Answers[LedgerEntry]):
    """The paid calls of an item, oldest first."""

    __slots__ = ()


class MemoRecord(Answer, frozen=True):
    """What `ctx.once` knows of a call: that it is under way, its answer, or that it is in doubt."""

    _brief: ClassVar = ("stage", "name", "state", "in_doubt", "cost")

    pipeline: str
    #: The key of the item.
    key: str
    stage: str
    name: str
    #: `intended`, `done` or `rejected`.
    state: str
    #: Begun, and nobody knows whether it was made and charged; not while its stage is in progress.
    in_doubt: bool
    at: datetime
    version: str
    idempotency_key: str
    cost: Decimal | None
    value: Any
    #: The entry of the ledger that it belongs to.
    call: int | None
    rejections: int

    @classmethod
    def of(cls, facts: Mapping[str, Any]) -> Self:
        return read(cls, facts, value=_shown(facts["value"]))

    @property
    def standing(self) -> str:
        """What became of it, in words."""
        if self.in_doubt:
            return f"in doubt since {iso(self.at)}, idempotency key {self.idempotency_key}"
        if self.state == "intended":
            return f"begun {iso(self.at)}, idempotency key {self.idempotency_key}"
        if self.state == "rejected":
            times = "once" if self.rejections == 1 else f"{self.rejections} times"
            return f"rejected {times}; the next attempt calls again"
        cost = "" if self.cost is None else f", cost {exact(self.cost)}"
        return f"recorded {iso(self.at)}{cost}, value {compact(self.value)}"

    def ways_to_settle(self) -> list[str]:
        """The commands that say what became of it, each for one case."""
        what = f"holdfast resolve --pipeline {word(self.pipeline)} --memo {word(self.name)}"
        end = f"{' --' if self.key.startswith('-') else ''} {word(self.key)}"
        return [
            f"if the provider has no such call: {what} --not-charged{end}",
            f"if it has, and its answer is lost: {what} --charged AMOUNT{end}",
            f"if it has, with what it returned: {what} --value JSON --charged AMOUNT{end}",
        ]

    def lines(self, width: int | None = None) -> list[str]:
        ways = self.ways_to_settle() if self.in_doubt else []
        return [f"{self.stage}: {printable(self.name)}, {self.standing}", *(f"  {way}" for way in ways)]


class Memos(Answers[MemoRecord]):
    """What the unfinished stages of an item have recorded so far, and what is in doubt."""

    __slots__ = ()

    @classmethod
    def of_item(
        cls, item: Mapping[str, Any], found: Sequence[Mapping[str, Any]], states: Mapping[str, str | None]
    ) -> Self:
        """The memos of an item. A call of a stage in progress may be under way, and is not in doubt yet."""
        whose = {"pipeline": item["pipeline"], "key": item["key"]}
        under_way = [stage for stage, state in states.items() if state == State.IN_PROGRESS]
        doubts = [one["state"] == "intended" and one["stage"] not in under_way for one in found]
        return cls.of({**one, **whose, "in_doubt": doubt} for one, doubt in zip(found, doubts, strict=True))


def _shown(text: str | None) -> Any:
    return None if text is None else codec.shown(text)
