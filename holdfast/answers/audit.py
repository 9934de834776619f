"""The audit: who did what, when and why."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any, ClassVar, Self

from holdfast.answers.action import asked_for, filter_of
from holdfast.answers.answer import Answer
from holdfast.answers.event import facts_of
from holdfast.answers.from_facts import read
from holdfast.answers.text_tables import details, iso
from holdfast.model.log_lines import printable


class AuditEntry(Answer, frozen=True):
    """Something that a person did."""

    _brief: ClassVar = ("at", "by", "verb", "what")

    at: datetime
    #: Empty if nobody was named.
    by: str
    #: The command: `retry`, `cancel`, `pause`, `tune`, …
    verb: str
    #: What it was done to, in one line.
    what: str
    reason: str
    #: The action on many items, or else the event in the log.
    action: int | None
    event: int | None
    #: What was asked for, by name.
    data: Mapping[str, Any]

    @classmethod
    def of(cls, facts: Mapping[str, Any]) -> Self:
        if "action" in facts:
            asked = filter_of(facts["filter"])
            data = asked if facts["undoes"] is None else {"undoes": facts["undoes"]}
            return read(cls, facts, what=asked_for(asked, facts["undoes"]), event=None, data=data)
        data = facts_of(facts["event"], facts["data"])
        return read(cls, facts, what=_what(facts, data), event=facts["number"], data=data)

    def lines(self, width: int | None = None) -> list[str]:
        number = "" if self.action is None else f" (action {self.action})"
        why = f": {printable(self.reason)}" if self.reason else ""
        return [f"{iso(self.at)}  {printable(self.by) or 'nobody named'}  {self.verb}  {self.what}{number}{why}"]


class AuditPage(Answer, frozen=True):
    """A page of the audit, newest first. It may have few entries, or none, where much was looked through: the next one goes
    on."""

    _brief: ClassVar = ("entries", "cursor")

    entries: tuple[AuditEntry, ...]
    #: The next page begins after this; None if there is none.
    cursor: str | None

    def lines(self, width: int | None = None) -> list[str]:
        return [line for one in self.entries for line in one.lines(width)] or ["Nobody did anything."]


def _what(facts: Mapping[str, Any], data: Mapping[str, Any]) -> str:
    place = "/".join(part for part in (facts["pipeline"], facts["stage"]) if part)
    named = [place, facts["resource"], facts["item"]]
    rest = details({name: value for name, value in data.items() if value is not None})
    return printable(f"{' '.join(part for part in named if part)}{rest}").strip()
