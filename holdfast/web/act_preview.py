"""What is shown before an act: how many, five of them, and what that may cost."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal

from holdfast.answers.units import amount
from holdfast.app import Holdfast
from holdfast.engine.actions import ActionCounts
from holdfast.model.facts import Facts
from holdfast.model.money import spoken as money

SAMPLES = 5
COLUMNS = ("state", "error", "call", "why", "cost")


@dataclass(frozen=True)
class Sample:
    """One of those that are meant; what is not known of its sort is None."""

    key: str
    pipeline: str | None = None
    stage: str | None = None
    state: str | None = None
    error: str | None = None
    #: The name of a paid call.
    call: str | None = None
    why: str | None = None
    cost: Decimal | None = None


@dataclass(frozen=True)
class Preview:
    counts: Mapping[str, int]
    more: bool
    samples: Sequence[Sample] = ()
    #: The expected cost, in words; empty if nothing of it has ever cost anything.
    price: str = ""
    #: What the action will count, if that is not what is shown: where items begin, not all that runs again because of it.
    begins: int | None = None

    @property
    def compared(self) -> int:
        """What the action is compared with when it is done."""
        return self.total if self.begins is None else self.begins

    @property
    def total(self) -> int:
        return sum(self.counts.values())

    @property
    def columns(self) -> list[str]:
        """What is known of any of the samples, beside where it is."""
        return [name for name in COLUMNS if any(getattr(one, name) is not None for one in self.samples)]


def samples_of(found: Iterable[Facts]) -> list[Sample]:
    """Samples as the engine has found them."""
    return [
        Sample(
            **{name: one[name] for name in ("key", "pipeline", "stage", "state")},
            call=one["memo"],
            cost=None if one["cost"] is None else amount(one["cost"]),
        )
        for one in found
    ]


def price(app: Holdfast, found: ActionCounts, pays_for: str) -> str:
    """What answers that are rejected have cost; or what attempts that are made again have cost on average, stage by stage."""
    least = "more than " if found.more else "about "
    if pays_for == "answers" and found.forecast.cost is not None:
        return f"{least}{money(amount(found.forecast.cost))}, which is what these answers have cost"
    if pays_for != "attempts":
        return ""
    if found.more and not found:
        return "not known: choose a stage"
    stages = found.forecast.stages
    pipelines = {pipeline for pipeline, _ in stages}
    spent: dict[tuple[str, str], Decimal] = {}
    for one in app.costs(pipeline=pipelines.pop() if len(pipelines) == 1 else None).sums if stages else ():
        if one.pipeline is not None and one.stage is not None and one.spent:
            spent[one.pipeline, one.stage] = one.spent
    ended = {(one.name, stage.name): stage.timings.count for one in app.status().pipelines for stage in one.stages}
    each = {place: spent[place] / ended[place] for place in stages if place in spent and ended.get(place)}
    if not each:
        return ""
    total = sum((each[place] * stages[place] for place in each), Decimal(0))
    of = "this stage" if len(stages) == 1 else "each stage"
    return f"{least}{money(total.quantize(Decimal('0.000001')))}, by what attempts of {of} have cost on average"
