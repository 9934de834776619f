"""A held row: what a claim returns, and the values that show whether the claim is still valid."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from holdfast.adopt.table.mapping import TableMapping
from holdfast.errors import LeaseLost

#: For each role that can fence: the attribute of Held with the value that the claim wrote.
_FENCES = {
    "holder": "token",
    "version": "version",
    "started": "started_at",
    "attempts": "attempt",
    "heartbeat": "beat_at",
}


@dataclass(frozen=True, slots=True, eq=False)
class Held:
    """One row, as it was claimed. Finishing it compares what the claim wrote, so that a late worker changes nothing."""

    mapping: TableMapping = field(repr=False)
    #: The primary key: a value, or a tuple if it has several columns.
    key: Any
    #: Counted from 1; always 1 without an attempts column.
    attempt: int
    token: Any = None
    version: int | None = None
    started_at: datetime | None = field(default=None, repr=False)
    beat_at: datetime | None = field(default=None, repr=False)
    #: The row right after the claim, by the model's attributes or the table's columns.
    row: Mapping[str, Any] = field(default_factory=dict, repr=False)

    @property
    def key_values(self) -> tuple[Any, ...]:
        return self.key if len(self.mapping.key) > 1 else (self.key,)

    @property
    def fence(self) -> tuple[Any, ...]:
        """The values that distinguish this claim from any other claim of the same row."""
        return tuple([getattr(self, _FENCES[role]) for role in self.mapping.fence])

    def __str__(self) -> str:
        return f"{self.mapping}, row {self.key!r}"


@dataclass(frozen=True, slots=True)
class Finished:
    """The rows that were changed, and the rows that were lost: taken over, changed or removed by somebody else."""

    won: tuple[Held, ...] = ()
    lost: tuple[Held, ...] = ()
    #: Rows among `won` that the same claim had already finished: the first reply was lost.
    again: tuple[Held, ...] = ()


def lost(rows: Iterable[Held], what: str) -> LeaseLost:
    """The error for rows that are no longer held."""
    shown = "; ".join(str(one) for one in list(rows)[:5])
    return LeaseLost(
        f"{shown}: no longer held by this claim (taken over, changed, removed, or finished by somebody else); {what}"
    )
