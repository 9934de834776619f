"""Pipeline changes: a preview of what registering a pipeline would change, with its price.

A stage that was added, or brought back, runs for the items that existed before it. The price is known if the stage has an
`estimate=`, or has cost something before. Items without any outcome are not new work: they are on their way through the
pipeline anyway. Everything is computed from counts, so it costs the same for any number of items.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import timedelta

from holdfast.engine.rename import renamed, renames
from holdfast.model.definition_changes import Changes, Moved, NewWork, Removed, Renamed, Rewired, items
from holdfast.model.layout import StageRow
from holdfast.model.money import decimal, spoken
from holdfast.model.stage import PipelineSpec, StageSpec
from holdfast.model.states import PASSED
from holdfast.store import Transaction


def changes(tx: Transaction, spec: PipelineSpec, rows: Mapping[str, StageRow]) -> Changes:
    """What registering this would change in a pipeline that has items; `rows` are its stages as the store knows them."""
    number = next((row.pipeline for row in rows.values()), None)
    if number is None or not tx.run("newest_item", pipeline=number)[0][0]:
        return Changes(spec.name)
    history = _History(tx)
    found = renames(rows, spec)
    there = renamed(rows, found)
    files = [was for was, _ in tx.run("declared_of", name=spec.name) if was and spec.origin and was != spec.origin]
    passed: dict[str, int] = {}
    new: list[NewWork] = []
    rewired = []
    for stage in spec.stages:
        row = there.get(stage.name)
        waiting = min((passed[name] for name in stage.after), default=history.most_passed(there.values()))
        if row is not None and row.active:
            passed[stage.name] = history.passed(row)
            if row.after != stage.after:
                rewired.append(Rewired(stage.name, row.after, stage.after))
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
    removed = tuple(Removed(row.name, history.passed(row), decimal(history.cost(row))) for row in gone)
    return Changes(
        spec.name,
        tuple(new),
        removed,
        tuple(Renamed(one.name, one.row.name, history.passed(one.row)) for one in found),
        tuple(rewired),
        Moved(files[0], spec.origin) if files and spec.origin else None,
        _to_accept(new, removed),
    )


def _new_work(stage: StageSpec, row: StageRow | None, n: int, history: _History) -> NewWork:
    cost, took = history.of_one(row) if row is not None else (None, None)
    if isinstance(stage.estimate, int):
        cost = stage.estimate
    return NewWork(
        stage.name,
        n,
        None if cost is None else decimal(round(cost * n)),
        None if took is None else timedelta(microseconds=round(took * n)),
        is_back=row is not None,
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


def _to_accept(added: Sequence[NewWork], removed: Sequence[Removed]) -> dict[str, str]:
    """The new work whose price a person should accept before it begins: the reason, by stage."""
    # While a stage is new, another that is gone and has cost something may be the same under its old name.
    paid = [one for one in removed if one.cost] if any(one.items and not one.is_back for one in added) else []
    found = {}
    for one in added:
        gone = paid[0] if paid and not one.is_back else None
        if one.items and (one.cost or gone):
            why = f"it is new for {items(one.items)}"
            if one.cost:
                why += f" and is expected to cost {spoken(one.cost)}"
            if gone is not None:
                why += f", while {gone.stage!r}, which has cost {spoken(gone.cost)}, is gone"
                why += f"; if it was renamed, say so: renamed_from={gone.stage!r}"
            found[one.stage] = why
    return found
