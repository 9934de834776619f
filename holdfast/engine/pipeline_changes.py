"""Pipeline changes: a preview of what registering a pipeline would change, with its price.

A stage that was added, or brought back, runs for the items that existed before it. The price is known if the stage has an
`estimate=`, or has cost something before. Items without any outcome are not new work: they are on their way through the
pipeline anyway. Everything is computed from counts, so it costs the same for any number of items.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from holdfast.engine.rename import renamed, renames
from holdfast.model.durations import spoken as length
from holdfast.model.layout import StageRow
from holdfast.model.money import spoken
from holdfast.model.shell import word
from holdfast.model.stage import PipelineSpec, StageSpec
from holdfast.model.states import PASSED
from holdfast.store import Transaction


class NewWork(NamedTuple):
    """A stage that will run for items that existed before it."""

    stage: str
    items: int
    #: The expected cost in all, in millionths; None if unknown.
    cost: int | None
    #: The expected time of all handlers, one after another; None if unknown.
    took_us: int | None
    #: Whether it was removed before and is brought back.
    back: bool


class Removed(NamedTuple):
    stage: str
    results: int
    #: What it has cost, in millionths.
    cost: int


@dataclass(frozen=True, slots=True)
class Changes:
    """How a pipeline differs from what the store knows."""

    pipeline: str
    added: tuple[NewWork, ...] = ()
    removed: tuple[Removed, ...] = ()
    #: The old name, the new name, and how many results it keeps.
    renamed: tuple[tuple[str, str, int], ...] = ()
    #: The stage, its old predecessors, and its new ones.
    rewired: tuple[tuple[str, tuple[str, ...], tuple[str, ...]], ...] = ()
    #: The old file and the new one.
    moved: tuple[str, str] | None = None

    def __bool__(self) -> bool:
        return bool(self.added or self.removed or self.renamed or self.rewired or self.moved)

    @property
    def suspects(self) -> tuple[Removed, ...]:
        """Removed stages with costs, while others are new: they may have been renamed."""
        new = any(one.items and not one.back for one in self.added)
        return tuple(one for one in self.removed if one.cost) if new else ()

    @property
    def priced(self) -> dict[str, str]:
        """The new work whose price a person should accept before it begins: the reason, by stage."""
        found = {}
        for one in self.added:
            gone = next(iter(self.suspects), None) if not one.back else None
            if one.items and (one.cost or gone):
                why = f"it is new for {_items(one.items)}"
                if one.cost:
                    why += f" and is expected to cost {spoken(one.cost)}"
                if gone is not None:
                    why += f", while {gone.stage!r}, which has cost {spoken(gone.cost)}, is gone"
                    why += f"; if it was renamed, say so: renamed_from={gone.stage!r}"
                found[one.stage] = why
        return found

    @property
    def price(self) -> int:
        return sum(one.cost or 0 for one in self.added)

    def lines(self) -> list[str]:
        """For people: one line per change."""
        said = [f"renamed  {was} → {name}: {_results(n)} and their history come along" for was, name, n in self.renamed]
        for one in self.added:
            cost = "cost not known" if one.cost is None else f"expected cost {spoken(one.cost)}"
            took = "time not known" if one.took_us is None else f"handler time {length(one.took_us / 1e6)}"
            said.append(
                f"{'is back ' if one.back else 'added   '} {one.stage}: runs for {_items(one.items)}; {cost}, {took}"
            )
        for gone in self.removed:
            cost = f", which cost {spoken(gone.cost)}," if gone.cost else ""
            said.append(f"removed  {gone.stage}: {_results(gone.results)}{cost} are kept, and nothing of it runs")
        for stage, was, now in self.rewired:
            said.append(f"rewired  {stage}: comes after {_names(now)} now (before: {_names(was)})")
        if self.moved:
            said.append(f"moved    it comes from {self.moved[1]} now (before: {self.moved[0]})")
        return said

    def held_lines(self, *, yet_to_come: bool = False) -> list[str]:
        """For people: what is put on hold unless it is accepted, and the command that releases it."""
        on_hold = "would be put on hold" if yet_to_come else "is on hold"
        return [
            f"The new work of {stage} {on_hold}: {why}. To let it run: {release(self.pipeline, stage)}"
            for stage, why in self.priced.items()
        ]


def release(pipeline: str, stage: str) -> str:
    """The command that releases the held work of a stage."""
    return f"holdfast retry --state on_hold --pipeline {word(pipeline)} --stage {word(stage)}"


def changes(tx: Transaction, spec: PipelineSpec, rows: Mapping[str, StageRow]) -> Changes:
    """What registering this would change in a pipeline that has items; `rows` are its stages as the store knows them."""
    number = next((row.pipeline for row in rows.values()), None)
    if number is None or not tx.run("newest_item", pipeline=number)[0][0]:
        return Changes(spec.name)
    history = _History(tx)
    found = renames(rows, spec)
    there = renamed(rows, found)
    moved = [(was, spec.origin) for [was] in tx.run("origin_of", name=spec.name) if was and spec.origin]
    passed: dict[str, int] = {}
    new: list[NewWork] = []
    rewired = []
    for stage in spec.stages:
        row = there.get(stage.name)
        waiting = min((passed[name] for name in stage.after), default=history.most_passed(there.values()))
        if row is not None and row.active:
            passed[stage.name] = history.passed(row)
            if row.after != stage.after:
                rewired.append((stage.name, row.after, stage.after))
            continue
        # Work done under the new name before the rename was declared counts too.
        there_before = [row, *(one.newcomer for one in found if one.name == stage.name)]
        missing = max(0, waiting - sum(history.passed(one) for one in there_before if one is not None))
        passed[stage.name] = waiting
        if not missing and len(there_before) > 1:
            continue
        new.append(_new_work(stage, row, missing, history))
    names = {stage.name for stage in spec.stages}
    gone = [row for name, row in there.items() if row.active and name not in names]
    return Changes(
        spec.name,
        tuple(new),
        tuple(Removed(row.name, history.passed(row), history.cost(row)) for row in gone),
        tuple((one.row.name, one.name, history.passed(one.row)) for one in found),
        tuple(rewired),
        next((pair for pair in moved if pair[0] != pair[1]), None),
    )


def _new_work(stage: StageSpec, row: StageRow | None, items: int, history: _History) -> NewWork:
    cost, took = history.of_one(row) if row is not None else (None, None)
    if isinstance(stage.estimate, int):
        cost = stage.estimate
    return NewWork(
        stage.name,
        items,
        None if cost is None else round(cost * items),
        None if took is None else round(took * items),
        back=row is not None,
    )


class _History:
    """Counts and costs of stages so far."""

    def __init__(self, tx: Transaction) -> None:
        self._passed: dict[int, int] = {}
        self._took: dict[int, tuple[int, int]] = {}
        self._cost: dict[int, int] = {}
        for stage, state, bucket, n, total_us, _ in tx.run("read_counts"):
            if state in PASSED:
                self._passed[stage] = self._passed.get(stage, 0) + n
                if bucket >= 0:
                    calls, took = self._took.get(stage, (0, 0))
                    self._took[stage] = (calls + n, took + total_us)
        for row in tx.records("sum_money"):
            self._cost[row["stage"]] = self._cost.get(row["stage"], 0) + row["costs"] + row["in_doubt"]

    def passed(self, row: StageRow) -> int:
        return self._passed.get(row.id, 0)

    def cost(self, row: StageRow) -> int:
        return self._cost.get(row.id, 0)

    def most_passed(self, rows: Iterable[StageRow]) -> int:
        """The most items that any of these stages has passed."""
        return max((self.passed(row) for row in rows), default=0)

    def of_one(self, row: StageRow) -> tuple[float | None, float | None]:
        """The average cost and time of one item, if any was done."""
        calls, took = self._took.get(row.id, (0, 0))
        if not calls:
            return None, None
        return self.cost(row) / calls if self.cost(row) else None, took / calls


def _items(n: int) -> str:
    return "1 item" if n == 1 else f"{n:,} items"


def _results(n: int) -> str:
    return "1 result" if n == 1 else f"{n:,} results"


def _names(names: tuple[str, ...]) -> str:
    return ", ".join(names) or "nothing"
