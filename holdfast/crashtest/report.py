"""The report of a crash test."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any, Literal

from holdfast.answers.json_of import json_of
from holdfast.crashtest.advice import advice
from holdfast.crashtest.compare import Difference

Verdict = Literal["same", "different", "not reached"]


@dataclass(slots=True)
class Kill:
    """One run that was killed and resumed."""

    number: int
    where: str
    verdict: Verdict
    #: Processes needed after the kill, starts of handlers, paid calls, and calls in doubt.
    resumed: int = 0
    starts: int = 0
    paid: int = 0
    in_doubt: int = 0
    differences: list[Difference] = field(default_factory=list)


@dataclass(slots=True)
class CrashReport:
    """Every kill with its verdict. True if none made a difference."""

    file: str
    item: str
    pipeline: str
    #: Of the undisturbed run.
    starts: int
    paid: int
    cost: Decimal
    tables: list[str]
    boundaries: list[str]
    #: Differences between two undisturbed runs.
    unsteady: list[Difference] = field(default_factory=list)
    kills: list[Kill] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    seed: int | None = None
    seconds: float = 0.0

    @property
    def ok(self) -> bool:
        return not self.unsteady and not self.different

    def __bool__(self) -> bool:
        return self.ok

    @property
    def different(self) -> list[Kill]:
        return [kill for kill in self.kills if kill.verdict == "different"]

    @property
    def advice(self) -> list[str]:
        """What to change, causes first."""
        return advice([*self.unsteady, *(one for kill in self.different for one in kill.differences)])

    def assert_ok(self) -> None:
        """Raise AssertionError, with all details, if a crash makes a difference."""
        if not self.ok:
            raise AssertionError("\n".join(self.lines()))

    def lines(self, most: int = 3) -> Iterator[str]:
        """The differences, in full for the first `most` kills, and what to do."""
        if self.unsteady:
            yield f"{self.item!r} of {self.pipeline} does not have the same result twice, even undisturbed:"
            yield from (line for one in self.unsteady for line in shown(one))
        for kill in self.different[:most]:
            yield f"killed {kill.where}:"
            yield from (line for one in kill.differences for line in shown(one))
        if len(self.different) > most:
            yield f"and {len(self.different) - most} more kills with a difference"
        for one in self.advice:
            yield f"What to change: {one}"
        yield self.summary

    @property
    def summary(self) -> str:
        counts = Counter(kill.verdict for kill in self.kills)
        missed = f", {counts['not reached']} not reached" if counts["not reached"] else ""
        return (
            f"{counted(len(self.kills), 'kill')} in {self.seconds:.1f} s: {counts['same']} the same, "
            f"{counts['different']} different{missed}"
        )

    def as_json(self) -> dict[str, Any]:
        return {**json_of(self), "ok": self.ok, "advice": self.advice}


def shown(one: Difference, indent: str = "  ") -> Iterator[str]:
    """A difference with its rows: `-` should be there, `+` should not."""
    yield f"{indent}{one.text}"
    for sign, rows in (("-", one.missing), ("+", one.extra)):
        yield from (f"{indent}  {sign} {row!r}" for row in rows)


def counted(n: int, what: str) -> str:
    """`1 kill`, `3 kills`."""
    return f"{n:,} {what}{'' if n == 1 else 's'}"
