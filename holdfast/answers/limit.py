"""Limits: every resource with what is allowed, what is used, and what stands in the way."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from decimal import Decimal
from typing import Any, ClassVar

from holdfast.answers.answer import Answer, Answers
from holdfast.answers.text_tables import to_the_second
from holdfast.model.log_lines import printable
from holdfast.model.money import spoken as money


class ResourceLimit(Answer, frozen=True):
    """A resource. Limits of a pipeline are those of a resource named @PIPELINE, limits of a stage of @PIPELINE/STAGE."""

    _brief: ClassVar = ("name", "in_use", "paused", "breaker", "spent")

    name: str
    #: The limits in effect, as the pipeline or `holdfast tune` gives them.
    allowed: Mapping[str, Any]
    #: What of it was tuned.
    tuned: tuple[str, ...]
    #: The stages that use it, as PIPELINE/STAGE.
    stages: tuple[str, ...]
    in_use: int
    #: The share of the allowed rate that is used at most, after a rate limit; 1 for all of it.
    pace: float
    #: Since when it cools down, as far as the log tells.
    cooled_at: datetime | None
    cool_until: datetime | None
    paused: bool
    reason: str | None
    #: Since when, as far as the log tells.
    paused_at: datetime | None
    paused_until: datetime | None
    #: `closed`, `open` or `probing`, and the failures in a row.
    breaker: str
    #: While it is open: since when, as far as the log tells, and until it is probed.
    breaker_opened_at: datetime | None
    breaker_until: datetime | None
    failures: int
    #: What was spent in all: `costs`, which were charged, and what is `in_doubt`.
    spent: Decimal
    costs: Decimal
    in_doubt: Decimal
    spent_today: Decimal
    #: For work that is running.
    set_aside: Decimal

    def lines(self, width: int | None = None) -> list[str]:
        allowed = ", ".join(f"{key} {value}" for key, value in self.allowed.items()) or "no limit"
        lines = [f"{self.name}: {allowed}", f"  used by {', '.join(self.stages) or 'no stage'}; {self.in_use} in use"]
        if self.spent or self.set_aside:
            doubt = f" ({money(self.in_doubt)} of it in doubt)" if self.in_doubt else ""
            aside = f", {money(self.set_aside)} set aside for running work" if self.set_aside else ""
            lines.append(f"  {money(self.spent_today)} spent today, {money(self.spent)} in all{doubt}{aside}")
        if self.pace < 1:
            lines.append(f"  slowed down to {self.pace:.0%} after a rate limit; it grows back")
        if self.cool_until:
            lines.append(f"  cooling down until {to_the_second(self.cool_until)}")
        if self.breaker != "closed":
            lines.append(f"  its breaker is {self.breaker} after {self.failures} failures in a row")
        if self.paused:
            until = f", until {to_the_second(self.paused_until)}" if self.paused_until else ""
            lines.append(f"  paused: {self.reason}{until}")
        return list(map(printable, lines))


class ResourceLimits(Answers[ResourceLimit]):
    """Every resource that a stage uses."""

    __slots__ = ()

    def lines(self, width: int | None = None) -> list[str]:
        return super().lines(width) or ["No stage uses a resource."]
