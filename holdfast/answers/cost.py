"""What was spent, in sums."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import date
from decimal import Decimal
from typing import Any, ClassVar

from holdfast.answers.answer import Answer
from holdfast.answers.text_tables import aligned, table
from holdfast.model.money import spoken as money
from holdfast.model.paid_call import TOKENS

#: What a sum has for what it is by.
_SUMS = ("spent", "costs", "in_doubt", "set_aside", "payments", "doubts", *TOKENS)


class CostSum(Answer, frozen=True):
    """One sum. What the sums were not asked by is None."""

    _brief: ClassVar = ("pipeline", "stage", "item", "resource", "model", "day", "spent")

    pipeline: str | None
    stage: str | None
    item: str | None
    resource: str | None
    model: str | None
    #: In the time zone of the resource.
    day: date | None
    #: `costs`, which were charged, and what is `in_doubt`.
    spent: Decimal
    costs: Decimal
    in_doubt: Decimal
    #: For work that is running; known by pipeline and stage only.
    set_aside: Decimal
    payments: int
    doubts: int
    tokens_in: int
    tokens_out: int
    #: A part of `tokens_in`.
    tokens_cached: int
    #: A part of `tokens_out`.
    tokens_reasoning: int


class Costs(Answer, frozen=True):
    """What was spent, by what was asked for, the largest sums first; and in all."""

    _brief: ClassVar = ("by", "sums", "total")

    by: tuple[str, ...]
    sums: tuple[CostSum, ...]
    total: CostSum

    @classmethod
    def summed(cls, by: Sequence[str], found: Sequence[Mapping[str, Any]]) -> Costs:
        total = {name: sum(one[name] for one in found) for name in _SUMS}
        return cls(tuple(by), tuple(map(CostSum.of, found)), CostSum.of(total))

    def lines(self, width: int | None = None) -> list[str]:
        total = self.total
        if not self.sums:
            return ["Nothing was spent."]
        shown = ["costs", *(name for name in ("in_doubt", "set_aside") if getattr(total, name))]
        columns = [aligned([getattr(one, name) for one in self.sums]) for name in shown]
        counts = ["payments", *(name for name in TOKENS if getattr(total, name))]
        rows = [
            [*(getattr(one, name) for name in self.by), *amounts, *(getattr(one, name) for name in counts)]
            for one, *amounts in zip(self.sums, *columns, strict=True)
        ]
        head = [name.replace("_", " ") for name in (*self.by, *shown, *counts)]
        lines = table(head, rows, width=width, right=[name.replace("_", " ") for name in shown])
        lines.append(f"total {money(total.costs)} in {_many(total.payments, 'payment')}")
        if total.in_doubt:
            lines.append(
                f"in doubt {money(total.in_doubt)} in {_many(total.doubts, 'call')} that may have been charged; it counts as "
                f"spent until somebody says what became of them: holdfast resolve"
            )
        if total.set_aside:
            lines.append(f"set aside {money(total.set_aside)} for what is running now")
        return lines


def _many(n: int, what: str) -> str:
    return f"{n:,} {what}{'' if n == 1 else 's'}"
