"""Why an item does not run: the one thing that keeps it, when that clears, and what a person can do."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any, ClassVar, Self

from holdfast.answers.answer import Answer
from holdfast.answers.from_facts import read
from holdfast.answers.paid_call import MemoRecord, Memos
from holdfast.answers.text_tables import compact, iso
from holdfast.answers.worker import ProgressNote
from holdfast.model.log_lines import printable


class Explanation(Answer, frozen=True):
    """What keeps an item from running."""

    _brief: ClassVar = ("pipeline", "key", "stage", "reason", "text")

    pipeline: str
    key: str
    stage: str | None
    state: str | None
    #: A word for programs to act on.
    reason: str
    #: A sentence for people.
    text: str
    since: datetime | None
    #: When it clears by itself.
    until: datetime | None
    #: What a person can do.
    do: str | None
    #: The guard or the resource that keeps it.
    guard: str | None
    resource: str | None
    #: Of an attempt that is running.
    progress: ProgressNote | None
    #: Paid calls that a person has to settle first.
    in_doubt: tuple[MemoRecord, ...]

    @classmethod
    def of(cls, facts: Mapping[str, Any]) -> Self:
        memos = Memos.of_item(facts, [one for one in facts["memos"] if one["stage"] == facts["stage"]], {})
        return read(cls, facts, in_doubt=tuple(one for one in memos if one.in_doubt))

    def lines(self, width: int | None = None) -> list[str]:
        where = f", stage {self.stage} ({self.state or 'not begun'})" if self.stage else ""
        lines = [f"{self.pipeline} / {printable(self.key)}{where}: {printable(self.text)}"]
        if self.since:
            lines.append(f"since {iso(self.since)}")
        if self.progress:
            lines.append(f"progress {compact(self.progress.json())}")
        if self.until:
            lines.append(f"until {iso(self.until)}")
        for one in self.in_doubt:
            lines.append(f"the call {one.name!r} is {one.standing}")
            lines += [f"  {way}" for way in one.ways_to_settle()]
        return [*lines, printable(self.do)] if self.do else lines
