"""Compare the end of a run with that of an undisturbed one."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from holdfast.crashtest.record import Told
from holdfast.crashtest.snapshot import Snapshot, TableSnapshot
from holdfast.model.money import spoken

#: Rows of each kind that are shown.
ROWS_SHOWN = 5


@dataclass(frozen=True, slots=True)
class Difference:
    """One difference."""

    #: `table`, `items`, `result`, `state`, `paid`, `cost`, `memo`, `outside`, `dangling`, `wrong`.
    kind: str
    #: The table, or PIPELINE/STAGE, or the pipeline.
    where: str
    text: str
    #: Rows that should be there, and rows that should not.
    missing: list[Any] = field(default_factory=list)
    extra: list[Any] = field(default_factory=list)
    #: The columns of a table, if the rows differ only in these.
    columns: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Ignored:
    """What is left out: whole tables, columns as `table.column`, results as `pipeline/stage`."""

    names: frozenset[str]

    def table(self, name: str, table: TableSnapshot) -> TableSnapshot | None:
        if name in self.names:
            return None
        left = [column for column in table.columns if f"{name}.{column}" in self.names]
        return table.without(left) if left else table

    def result(self, pipeline: str, stage: str) -> bool:
        return f"{pipeline}/{stage}" in self.names


def differences(expected: Snapshot, found: Snapshot, ignored: Ignored) -> list[Difference]:
    """All differences between the ends of two runs, causes before consequences as far as possible."""
    return [
        *_items(expected, found),
        *_stages(expected, found, ignored),
        *tables(expected, found, ignored),
        *_dangling(expected, found, ignored),
        *(Difference("wrong", "holdfast", one) for one in found.wrong),
    ]


def _items(expected: Snapshot, found: Snapshot) -> list[Difference]:
    told = []
    pipelines = sorted({pipeline for pipeline, _ in expected.items.keys() ^ found.items.keys()})
    for pipeline in pipelines:
        missing = sorted(key for name, key in expected.items.keys() - found.items.keys() if name == pipeline)
        extra = sorted(key for name, key in found.items.keys() - expected.items.keys() if name == pipeline)
        text = f"items of {pipeline}: {len(missing)} missing, {len(extra)} extra"
        told.append(Difference("items", pipeline, text, _some(missing), _some(extra)))
    for name in sorted(expected.items.keys() & found.items.keys()):
        if expected.items[name] != found.items[name]:
            text = f"the data of {name[1]!r} of {name[0]}"
            told.append(Difference("items", name[0], text, [expected.items[name]], [found.items[name]]))
    return told


def _stages(expected: Snapshot, found: Snapshot, ignored: Ignored) -> list[Difference]:
    told = []
    for name in sorted(expected.stages.keys() & found.stages.keys()):
        pipeline, key, stage = name
        (state, result, error), (now, its, trouble) = expected.stages[name], found.stages[name]
        where = f"{pipeline}/{stage}"
        if state != now:
            why = f": {trouble}" if trouble else ""
            told.append(
                Difference("state", where, f"{where} of {key!r} ended {now or 'never begun'}, not {state}{why}")
            )
        elif (result, error) != (its, trouble) and not ignored.result(pipeline, stage):
            text = f"the result of {where} of {key!r}"
            told.append(Difference("result", where, text, [error or result], [trouble or its]))
    return told


def tables(expected: Snapshot, found: Snapshot, ignored: Ignored) -> list[Difference]:
    """Differences in the rows of the user's tables, whatever their order."""
    told = []
    for name in sorted(expected.tables.keys() | found.tables.keys()):
        old, new = expected.tables.get(name, TableSnapshot([])), found.tables.get(name, TableSnapshot([]))
        one, two = ignored.table(name, old), ignored.table(name, new)
        if one is None or two is None or (one.columns == two.columns and one.rows == two.rows):
            continue
        missing, extra = one.rows - two.rows, two.rows - one.rows
        text = f"table {name}: {missing.total()} rows missing, {extra.total()} extra"
        columns = _differing(one, two)
        told.append(Difference("table", name, text, _shown(one.columns, missing), _shown(two.columns, extra), columns))
    return told


def _differing(one: TableSnapshot, two: TableSnapshot) -> tuple[str, ...]:
    """The columns, if the rows differ only in these and are equal in others."""
    if one.columns != two.columns or one.rows.total() != two.rows.total():
        return ()
    differ = []
    for at, column in enumerate(one.columns):
        values = [Counter[Any](), Counter[Any]()]
        for table, counter in zip((one, two), values, strict=True):
            for row, n in table.rows.items():
                counter[row[at]] += n
        if values[0] != values[1]:
            differ.append(column)
    if not differ or len(differ) == len(one.columns) or one.without(differ).rows != two.without(differ).rows:
        return ()
    return tuple(differ)


def _dangling(expected: Snapshot, found: Snapshot, ignored: Ignored) -> list[Difference]:
    return [
        Difference("dangling", table, f"table {table}: {n} rows refer to rows that are not there")
        for table, n in sorted((found.dangling - expected.dangling).items())
        if table not in ignored.names
    ]


def payments(expected: Snapshot, undisturbed: Told, found: Snapshot, told: Told) -> list[Difference]:
    """What was paid more than in an undisturbed run, without a call in doubt that explains it."""
    doubts = found.doubts - expected.doubts
    spare = doubts.total() - sum(((told.paid - undisturbed.paid) & doubts).values())
    differ = []
    for stage in sorted(told.paid.keys() | undisturbed.paid.keys()):
        more = told.paid[stage] - undisturbed.paid[stage] - doubts[stage]
        if not stage:
            # A call of an unknown stage: any call in doubt may be this one.
            more -= spare
        if more > 0:
            text = f"{told.paid[stage]} paid calls in {stage or 'threads of handlers'}, {undisturbed.paid[stage]} undisturbed"
            doubted = f", {doubts[stage]} in doubt" if doubts[stage] else ", and none was in doubt"
            differ.append(Difference("paid", stage, text + doubted))
    for stage in sorted(told.costs.keys() | undisturbed.costs.keys()):
        if told.costs[stage] > undisturbed.costs[stage]:
            sums = spoken(told.costs[stage]), spoken(undisturbed.costs[stage])
            text = f"handlers of {stage} told {sums[0]} with ctx.cost, {sums[1]} undisturbed"
            differ.append(Difference("cost", stage, text))
    for stage in sorted(found.costs.keys() | expected.costs.keys()):
        if found.costs[stage] > expected.costs[stage] and not any(one.where == stage for one in differ):
            text = f"{stage} has cost {spoken(found.costs[stage])}, undisturbed {spoken(expected.costs[stage])}"
            differ.append(Difference("cost", stage, text))
    for stage, names in sorted(told.memos.items()):
        new = sorted(names - undisturbed.memos.get(stage, set()))
        if new:
            old = sorted(undisturbed.memos.get(stage, set()) - names)
            text = f"names that {stage} gave to ctx.once: {len(new)} that no undisturbed run gives"
            differ.append(Difference("memo", stage, text, _some(old), _some(new)))
    return differ


def _some(names: Sequence[Any]) -> list[Any]:
    return list(names[:ROWS_SHOWN])


def _shown(columns: Sequence[str], rows: Counter[tuple[Any, ...]]) -> list[dict[str, Any]]:
    """A few rows by column, in a stable order."""
    ordered = sorted(rows.elements(), key=repr)[:ROWS_SHOWN]
    return [{name: _short(value) for name, value in zip(columns, row, strict=True)} for row in ordered]


def _short(value: Any) -> Any:
    text = value.hex() if isinstance(value, bytes) else value
    return f"{text[:79]}…" if isinstance(text, str) and len(text) > 80 else text
