"""Failures, grouped by cause."""

from __future__ import annotations

from datetime import datetime
from decimal import Decimal
from typing import ClassVar

from holdfast.answers.answer import Answer, Answers
from holdfast.answers.text_tables import aligned, shortened, table, to_the_second
from holdfast.model.shell_quoting import word


class ErrorGroup(Answer, frozen=True):
    """Failures with the same class of error, raised at the same place, with the same message apart from keys and numbers."""

    _brief: ClassVar = ("group", "count", "error", "message")

    #: What `items`, `retry`, `cancel`, `forget` and `delete` take as `group`.
    group: str
    error: str
    place: str
    message: str
    #: What to do about it, for errors that holdfast knows.
    hint: str | None
    #: How many attempts failed, and what was spent in them.
    count: int
    spent: Decimal
    #: As PIPELINE/STAGE.
    stages: tuple[str, ...]
    first_seen_at: datetime
    last_seen_at: datetime
    #: How many attempts failed in each of the last 24 hours, the oldest first. Workers write these every 20 seconds.
    by_hour: tuple[int, ...]
    #: An item that failed in this way; None if it was deleted since.
    pipeline: str | None
    key: str | None
    #: How many items stand failed now, and whether there are more than were counted.
    items: int
    more_items: bool


class ErrorGroups(Answers[ErrorGroup]):
    """What attempts failed of, the most frequent cause first."""

    __slots__ = ()

    def lines(self, width: int | None = None) -> list[str]:
        if not self:
            return ["No attempt has failed."]
        rows = [
            [
                one.group,
                one.count,
                sum(one.by_hour),
                f"{one.items}{'+' if one.more_items else ''}",
                spent,
                ", ".join(one.stages),
                to_the_second(one.last_seen_at),
                shortened(": ".join(part for part in (one.error, one.message) if part), 100),
            ]
            for one, spent in zip(self, aligned([one.spent for one in self]), strict=True)
        ]
        head = ["group", "attempts", "last 24 h", "items now", "spent", "stages", "last seen", "error"]
        right, least = ("items now", "spent"), ("last seen", "last 24 h", "spent", "stages")
        lines = table(head, rows, width=width, right=right, least=least)
        for error, hint in {one.error: one.hint for one in self if one.hint}.items():
            lines.append(f"{error}: {hint}.")
        first = self[0]
        if first.key is not None:
            where = f" in {first.place}" if first.place else ""
            lines.append(f"Group {first.group} fails{where}. For an example: holdfast show {word(first.key)}")
        return [*lines, f"To send its items back: holdfast retry --group {first.group}"]
