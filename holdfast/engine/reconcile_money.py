"""Reconcile: compare sums of money with the ledger, and correct them.

A difference is added to a sum in an exclusive transaction; what workers have added stays in their own rows. The budgets of a
pipeline or a stage follow from the sums of its stages. They are exact in all and for today; past days do not matter to them.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from typing import Any, NamedTuple

from holdfast.clock import SECOND
from holdfast.engine import ledger
from holdfast.engine.claim_within_limits import called
from holdfast.engine.costs import sums_of_calls
from holdfast.engine.events import EVER, LAST
from holdfast.engine.layout import layout
from holdfast.engine.selection import Who
from holdfast.model.budget_day import date_of, day_of
from holdfast.model.layout import Layout
from holdfast.model.money import spoken
from holdfast.model.paid_call import IMPORTED, TOKENS
from holdfast.store import Transaction

#: In every time zone, days begin at a quarter of an hour.
QUARTER_US = 900 * SECOND
DAY_US = 86_400 * SECOND
#: The longest day in any time zone.
LONGEST_DAY_US = 26 * 3600 * SECOND

SUMS = ("payments", "costs", "doubts", "in_doubt", *TOKENS)
#: The sums that a budget counts.
BUDGET = ("costs", "in_doubt")

Sums = dict[Any, list[int]]


class Wrong(NamedTuple):
    """A sum that differs from the ledger: a description, and the row that corrects it."""

    text: str
    #: None for limits of a pipeline or a stage.
    day: int | None
    statement: str
    row: tuple[Any, ...]


class MoneyDifferences(NamedTuple):
    """Wrong sums. Budgets are compared only from `old_at` on, when workers without a ledger last counted money."""

    wrong: list[Wrong]
    old_at: int | None

    @property
    def steps(self) -> list[int | None]:
        """The days to correct, one at a time; then budgets, which follow from them."""
        return sorted({one.day for one in self.wrong}, key=lambda day: (day is None, day or 0))


def find(tx: Transaction, progress: Callable[[int], None] | None = None) -> MoneyDifferences:
    """Every sum that differs from the ledger. Reads the whole ledger; `progress` gets the number of calls read so far."""
    counted = _Counted(tx)
    for calls in counted.read(EVER, LAST):
        if progress is not None:
            progress(calls)
    old_at = _old_at(tx, counted.old_at)
    wrong = [*counted.wrong_costs(), *counted.wrong_budgets(old_at)]
    return MoneyDifferences([*wrong, *_wrong_limits(tx, counted.money, old_at, _limits(layout(tx)))], old_at)


def repair(tx: Transaction, day: int | None, old_at: int | None, who: Who) -> list[str]:
    """Correct the sums of one day, or the budgets of pipelines and stages; return what was wrong. The transaction must be
    exclusive."""
    if day is None:
        wrong = [*_wrong_limits(tx, _kept(tx), old_at, _limits(layout(tx)))]
    else:
        counted = _Counted(tx)
        # Across all time zones, a day begins half a day before it does in UTC and ends half a day later.
        list(counted.read(max(EVER, (day - 1) * DAY_US), min(LAST, (day + 2) * DAY_US)))
        wrong = [one for one in (*counted.wrong_costs(), *counted.wrong_budgets(old_at)) if one.day == day]
    _put_right(tx, wrong)
    if wrong:
        found = [one.text for one in wrong[:100]]
        tx.record("sums_repaired", day=day and date_of(day), found=found, by=who.name, reason=who.reason)
        # A budget that seemed used up may have money left.
        tx.tell_idle_workers()
    return [one.text for one in wrong]


def count_for_new_limits(tx: Transaction, before: Layout) -> None:
    """Give new budgets of pipelines and stages what was spent before. The transaction must be exclusive."""
    known = layout(tx)
    begun = [
        number for number in _limits(known) if not _counts_alike(before, number, known.resources[number].spec.zone)
    ]
    if begun:
        wrong = _wrong_limits(tx, _kept(tx), None, begun)
        if tx.run("ledger_came"):
            # Before there was a ledger, they may have counted money that is not in it.
            wrong = (one for one in wrong if min(one.row[2:]) >= 0)
        _put_right(tx, [*wrong])


def _counts_alike(before: Layout, number: int, zone: str) -> bool:
    row = before.resources.get(number)
    return row is not None and row.spec.limits_anything and row.spec.zone == zone


def _limits(known: Layout) -> list[int]:
    """The limits of pipelines and stages that limit anything; others count nothing."""
    return [row.id for row in known.resources.values() if row.spec.name.startswith("@") and row.spec.limits_anything]


def _old_at(tx: Transaction, newest_call: int | None) -> int | None:
    """When workers of the version before, which counted money without a ledger, last did so; None for never."""
    came = tx.run("ledger_came")
    told = [came[0][0], newest_call, tx.run("newest_old_payment")[0][0]] if came else []
    return max((at for at in told if at is not None), default=None)


def _kept(tx: Transaction) -> Sums:
    return {
        (row["stage"], row["resource"], row["model"], row["day"]): [row[name] for name in SUMS]
        for row in tx.records("sum_money")
    }


def _put_right(tx: Transaction, wrong: list[Wrong]) -> None:
    for statement in ("add_money", "add_spent"):
        tx.run_rows(statement, sorted(one.row for one in wrong if one.statement == statement))


class _Counted:
    """The sums of calls."""

    def __init__(self, tx: Transaction) -> None:
        self._tx = tx
        self._known = layout(tx)
        self.money: Sums = {}
        #: When a worker without a ledger last paid.
        self.old_at: int | None = None

    def read(self, since: int, until: int) -> Iterator[int]:
        """Add up the calls of a period; yields the number read so far."""
        calls = 0
        for rows in sums_of_calls(self._tx, since, until):
            for row in rows:
                place = (row["stage"], row["resource"], row["model"], row["day"])
                ledger.add(self.money, place, [row[name] for name in SUMS])
                self.old_at = max((at for at in (self.old_at, row["old_at"]) if at is not None), default=None)
            calls += sum(row["calls"] for row in rows)
            yield calls

    def wrong_costs(self) -> Iterator[Wrong]:
        for place, said, right in _differing(SUMS, _kept(self._tx), self.money):
            stage, resource, model, day = place
            where = self._known.stages[stage].label if stage in self._known.stages else f"stage {stage}"
            parts = [where, *([f"resource {resource!r}"] if resource else []), *([f"model {model!r}"] if model else [])]
            text = f"costs of {', '.join(parts)} on {date_of(day)}: {_words(SUMS, said, right)}"
            yield Wrong(text, day, "add_money", (0, *place, *_more(said, right)))

    def wrong_budgets(self, old_at: int | None) -> Iterator[Wrong]:
        """Wrong budgets of resources, whose days are those of the ledger."""
        resources = self._known.resources
        numbers = {row.spec.name: number for number, row in resources.items()}
        counted: Sums = {}
        for (_, resource, _, day), sums in self.money.items():
            if resource in numbers:
                ledger.add(counted, (numbers[resource], day), _of_budget(sums))
        kept: Sums = {
            (number, day): [amount - in_doubt, in_doubt]
            for number, day, amount, in_doubt in self._tx.run("all_spent")
            if number not in resources or not resources[number].spec.name.startswith("@")
        }
        for (number, day), said, right in _differing(BUDGET, kept, counted):
            row = resources.get(number)
            if row is None or old_at is None or day > day_of(old_at, row.spec.zone):
                whose = f"resource {number}" if row is None else called(row.spec.name)
                text = f"budget of {whose} on {date_of(day)}: {_words(BUDGET, said, right)}"
                yield Wrong(text, day, "add_spent", (number, day, *_more(said, right)))


def _wrong_limits(tx: Transaction, money: Sums, old_at: int | None, numbers: Collection[int]) -> Iterator[Wrong]:
    """Budgets of pipelines and stages that differ from what their stages have spent, today and before. Their days may begin at
    another time than those of the calls, so recent calls are read one by one."""
    known = layout(tx)
    spent: Sums = {}
    for (stage, resource, *_), sums in money.items():
        if resource != IMPORTED:
            ledger.add(spent, stage, _of_budget(sums))
    since = tx.now - LONGEST_DAY_US
    late = [row for rows in sums_of_calls(tx, since, quarters=True) for row in rows if _counts(row)]
    kept = tx.run("all_spent")
    for number in numbers:
        spec, users = known.resources[number].spec, known.users_of(number)
        first = day_of(since, spec.zone)
        right: Sums = {}
        for stage in spent.keys() & users:
            ledger.add(right, first, spent[stage])
        for row in late:
            day = day_of(row["quarter"] * QUARTER_US, spec.zone)
            if row["stage"] in users and day > first:
                ledger.add(right, day, [row[name] for name in BUDGET])
                ledger.add(right, first, [-row[name] for name in BUDGET])
        said: Sums = {}
        for _, day, amount, in_doubt in (one for one in kept if one[0] == number):
            ledger.add(said, max(day, first), [amount - in_doubt, in_doubt])
        for day, has, should in _differing(BUDGET, said, right):
            # Before there was a ledger, they may have counted money that is not in it.
            if old_at is None or day > max(first, day_of(old_at, spec.zone)):
                when = f"until {date_of(day)}" if day == first else f"on {date_of(day)}"
                text = f"budget of {called(spec.name)} {when}: {_words(BUDGET, has, should)}"
                yield Wrong(text, None, "add_spent", (number, day, *_more(has, should)))


def _counts(row: dict[str, Any]) -> bool:
    return row["resource"] != IMPORTED and any(row[name] for name in BUDGET)


def _of_budget(sums: list[int]) -> list[int]:
    return [sums[SUMS.index(name)] for name in BUDGET]


def _differing(names: tuple[str, ...], kept: Sums, right: Sums) -> Iterator[tuple[Any, list[int], list[int]]]:
    nothing = [0] * len(names)
    for place in sorted(kept.keys() | right.keys()):
        if (said := kept.get(place, nothing)) != (should := right.get(place, nothing)):
            yield place, said, should


def _more(said: list[int], right: list[int]) -> list[int]:
    return [should - has for has, should in zip(said, right, strict=True)]


def _words(names: tuple[str, ...], said: list[int], right: list[int]) -> str:
    """The sums that differ."""
    parts = []
    for name, *amounts in zip(names, said, right, strict=True):
        has, should = (spoken(n) if name in BUDGET else f"{n:,}" for n in amounts)
        if has != should:
            parts.append(f"{name.replace('_', ' ')} {has}, the ledger says {should}")
    return "; ".join(parts)
