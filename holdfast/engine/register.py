"""Register a pipeline: write its stages to the database as its author declares them.

A registration that changes something raises the generation, in an exclusive transaction. Completing transactions read the
generation under a shared lock. So every completion either was committed before the change, and the back-fill sees it, or
follows the new layout itself.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any, NamedTuple

import msgspec

from holdfast.engine.layout import layout
from holdfast.engine.price_of_changes import changes
from holdfast.engine.rename import rename, renamed, renames
from holdfast.model.declared_reads import EVERYTHING, Reading, Readings
from holdfast.model.definition_changes import Changes
from holdfast.model.layout import Layout, StageRow
from holdfast.model.stage import PipelineSpec, StageSpec
from holdfast.model.states import State
from holdfast.store import Transaction

#: Runs a function in a transaction.
InTransaction = Callable[[Callable[[Transaction], Any]], Any]


class Registered(NamedTuple):
    """What a registration changed."""

    added: list[str]
    changed: list[str]
    removed: list[str]
    #: By their new names.
    renamed: list[str]
    #: Stages whose new work is on hold because of its price.
    held: list[str]


def is_registered(tx: Transaction, spec: PipelineSpec) -> bool:
    """Whether registering would change nothing. Takes no locks."""
    [(origin, type_)] = tx.run("declared_of", name=spec.name) or [("", None)]
    same = (not spec.origin or spec.origin == origin) and spec.type == type_
    return same and not _differs(tx, _stages_of(tx, spec.name), spec)


def _differs(tx: Transaction, there: Mapping[str, StageRow], spec: PipelineSpec) -> bool:
    return bool(renames(there, spec)) or _Plan(there, spec, _provenance(tx, spec.name)).anything


def as_registered(tx: Transaction, specs: Iterable[PipelineSpec]) -> Layout:
    """The layout as it would be if these were registered. New stages have negative numbers."""
    known = layout(tx)
    changed = [(spec, there) for spec in specs if _differs(tx, there := _stages_of(tx, spec.name), spec)]
    if not changed:
        return known
    rows = [row for row in known.stages.values() if row.pipeline_name not in {spec.name for spec, _ in changed}]
    for spec, registered in changed:
        there = renamed(registered, renames(registered, spec))
        number = known.number_of(spec.name) or 0
        for position, stage in enumerate(spec.stages):
            row = there.pop(stage.name, None) or StageRow(
                -1 - len(rows),
                number,
                spec.name,
                stage.name,
                position,
                stage.after,
                stage.version,
                stage.max_attempts,
                True,
                known.generation,
                known.generation,
                None,
                None,
            )
            row = replace(row, position=position, after=stage.after, after_children=stage.after_children, active=True)
            readings = _readings(row, stage, _provenance(tx, spec.name))
            rows.append(
                replace(
                    row, version=stage.version, compatible=stage.compatible_from, readings=readings, type=stage.type
                )
            )
        rows += [replace(row, active=False) for row in there.values()]
    return Layout.of(known.generation, rows, known.resources.values(), known.pipelines.values())


def changes_of(tx: Transaction, spec: PipelineSpec) -> Changes:
    """A preview of what registering would change, with its price."""
    return changes(tx, spec, _stages_of(tx, spec.name))


def register(tx: Transaction, spec: PipelineSpec, *, accepted: bool = True) -> Registered:
    """Add, change, rename and retire stages so that the database has this pipeline. New work that has a price is put on hold
    unless somebody has accepted it. The transaction must be exclusive."""
    _forget_layout(tx)
    tx.run("add_pipeline", name=spec.name, now=tx.now)
    [pipeline] = [row[0] for row in tx.run("read_pipelines") if row[1] == spec.name]
    there = _stages_of(tx, spec.name)
    priced = {} if accepted else changes(tx, spec, there).on_hold
    if spec.origin:
        tx.run("set_origin", pipeline=pipeline, origin=spec.origin)
    tx.run("set_type_of_data", pipeline=pipeline, type=spec.type)
    if found := renames(there, spec):
        rename(tx, there, found)
        there = _stages_of(tx, spec.name)
    plan = _Plan(there, spec, _provenance(tx, spec.name))
    if not (found or plan.anything):
        return Registered([], [], [], [], [])
    _write_stages(tx, pipeline, spec, there, plan, priced)
    done = Registered(
        sorted(plan.added),
        sorted(plan.changed),
        sorted(row.name for row in plan.removed),
        sorted(one.name for one in found),
        sorted(priced),
    )
    tx.record("pipeline_registered", pipeline=pipeline, **done._asdict())
    tx.tell_idle_workers()
    return done


def _forget_layout(tx: Transaction) -> None:
    """Read the layout again from here on. A cached one may be wrong: a back-fill advances without raising the generation.
    And what this transaction reads belongs to a generation that is not committed yet, and must not be cached."""
    tx.store.cache.pop("layout", None)
    tx.generation = -1


def _write_stages(
    tx: Transaction,
    pipeline: int,
    spec: PipelineSpec,
    there: Mapping[str, StageRow],
    plan: _Plan,
    priced: Mapping[str, str],
) -> None:
    """Add, change and retire stages under a new generation."""
    provenance = _provenance(tx, spec.name)
    [(generation,)] = tx.run("raise_generation", pipeline=pipeline, now=tx.now)
    [(newest,)] = tx.run("newest_item", pipeline=pipeline)
    for position, stage in enumerate(spec.stages):
        old = there.get(stage.name)
        begins = _Begins.of(newest, priced.get(stage.name))
        columns = _columns(stage, position, _readings(old, stage, provenance))
        if old is None:
            columns = {**columns, **begins._asdict()}
            tx.run("add_stage", pipeline=pipeline, name=stage.name, generation=generation, **columns)
        elif stage.name not in plan.moved:
            _change_stage(tx, old, columns, _Begins.as_is(old), generation=old.changed_generation)
        else:
            # If it is still to be put on hold, nobody has accepted its price meanwhile.
            again = begins if old.hold_next is None else _Begins.of(newest, old.hold_reason)
            _change_stage(tx, old, columns, again, generation=generation)
    for old in plan.removed:
        _change_stage(tx, old, _columns_of_row(old), _Begins(), generation=generation, active=False)
    _withdraw(tx, [there[name] for name in sorted(plan.moved)], spec)
    if plan.moved and newest:
        # The input of a stage may be different now, in any item.
        tx.run("begin_recheck", pipeline=pipeline, generation=generation)


def _change_stage(
    tx: Transaction, old: StageRow, columns: Mapping[str, Any], begins: _Begins, *, generation: int, active: bool = True
) -> None:
    tx.run("change_stage", stage=old.id, active=int(active), changed=generation, **columns, **begins._asdict())


def _stages_of(tx: Transaction, pipeline: str) -> dict[str, StageRow]:
    return {row.name: row for row in layout(tx).all_of(pipeline)}


def _provenance(tx: Transaction, pipeline: str) -> tuple[str, ...]:
    row = layout(tx).pipelines.get(pipeline)
    return () if row is None else row.provenance


def _readings(row: StageRow | None, stage: StageSpec, provenance: Iterable[str]) -> Readings:
    before = EVERYTHING if row is None else row.readings
    return before.changed_to(Reading.of_stage(stage.reads, provenance))


def learn_provenance(pipeline: str, merge: object, read: InTransaction, write: InTransaction) -> None:
    """Fields that a merge function declares as provenance are input only to stages that name them, from now on."""
    fields = frozenset(getattr(merge, "provenance", ()))
    if fields and not read(lambda tx: fields.issubset(_provenance(tx, pipeline))):
        write(lambda tx: _declare_provenance(tx, pipeline, fields))


def _declare_provenance(tx: Transaction, pipeline: str, fields: Iterable[str]) -> None:
    _forget_layout(tx)
    known = layout(tx)
    row = known.pipelines[pipeline]
    provenance = tuple(sorted({*row.provenance, *fields}))
    if provenance == row.provenance:
        return
    tx.run("raise_generation", pipeline=row.id, now=tx.now)
    tx.run("set_provenance", pipeline=row.id, provenance=msgspec.json.encode(provenance).decode())
    for stage in known.stages.values():
        if stage.pipeline == row.id and stage.readings.now.only is None:
            readings = stage.readings.changed_to(Reading.of_stage(None, provenance))
            tx.run("set_readings", stage=stage.id, readings=readings.write())
    tx.tell_idle_workers()


def _columns(stage: StageSpec, position: int, readings: Readings) -> dict[str, Any]:
    return {
        "position": position,
        "after": msgspec.json.encode(stage.after).decode(),
        "version": stage.version,
        "max_attempts": stage.max_attempts,
        "compatible": msgspec.json.encode(stage.compatible_from).decode(),
        "after_children": stage.after_children,
        "resources": msgspec.json.encode(stage.resources).decode(),
        "max_reruns_per_hour": stage.max_reruns_per_hour,
        "readings": readings.write(),
        "type": stage.type,
        "keep_previous": int(stage.keep_previous),
    }


def _columns_of_row(row: StageRow) -> dict[str, Any]:
    return {
        "position": row.position,
        "after": msgspec.json.encode(row.after).decode(),
        "version": row.version,
        "max_attempts": row.max_attempts,
        "compatible": msgspec.json.encode(row.compatible).decode(),
        "after_children": row.after_children,
        "resources": msgspec.json.encode(row.uses).decode(),
        "max_reruns_per_hour": row.max_reruns_per_hour,
        "readings": row.readings.write(),
        "type": row.type,
        "keep_previous": int(row.keep_previous),
    }


class _Begins(NamedTuple):
    """For which items that existed before it a stage has still to begin, and for which to be put on hold."""

    next: int | None = None
    until: int | None = None
    hold_next: int | None = None
    hold_until: int | None = None
    hold_reason: str | None = None

    @classmethod
    def of(cls, newest: int, price: str | None) -> _Begins:
        """All items up to the newest; none if there are no items yet."""
        if not newest:
            return cls()
        return cls(1, newest) if price is None else cls(hold_next=1, hold_until=newest, hold_reason=price)

    @classmethod
    def as_is(cls, row: StageRow) -> _Begins:
        return cls(row.backfill_next, row.backfill_until, row.hold_next, row.hold_until, row.hold_reason)


def _withdraw(tx: Transaction, moved: list[StageRow], spec: PipelineSpec) -> None:
    """Withdraw open work of stages that have other predecessors now; it begins again when these have passed."""
    numbers = {row[3]: row[0] for row in tx.run("read_stages") if row[2] == spec.name}
    for row in moved:
        before = [numbers[name] for name in spec.stage(row.name).after]
        for statement, state in (
            ("withdraw_waiting", State.PENDING),
            ("withdraw_delayed", State.RETRY_LATER),
            ("withdraw_held", State.ON_HOLD),
        ):
            gone = tx.run(statement, stage=row.id, before=before, needed=len(before))
            tx.count(row.id, state, -len(gone))


class _Plan:
    """What differs between the registered stages and those of a specification."""

    def __init__(self, there: Mapping[str, StageRow], spec: PipelineSpec, provenance: Iterable[str]) -> None:
        self.added = {stage.name for stage in spec.stages if stage.name not in there}
        self.removed = [row for name, row in there.items() if row.active and name not in {s.name for s in spec.stages}]
        self.changed: set[str] = set()
        #: Brought back after removal, or with other predecessors: items may have to be looked at again.
        self.moved: set[str] = set()
        for position, stage in enumerate(spec.stages):
            row = there.get(stage.name)
            if row is None:
                continue
            if not row.active or (row.after, row.after_children) != (stage.after, stage.after_children):
                self.moved.add(stage.name)
            if self.moved >= {stage.name} or (
                row.version,
                row.max_attempts,
                row.position,
                row.compatible,
                row.uses,
                row.max_reruns_per_hour,
                row.readings,
                row.type,
                row.keep_previous,
            ) != (
                stage.version,
                stage.max_attempts,
                position,
                stage.compatible_from,
                stage.resources,
                stage.max_reruns_per_hour,
                _readings(row, stage, provenance),
                stage.type,
                stage.keep_previous,
            ):
                self.changed.add(stage.name)

    @property
    def anything(self) -> bool:
        return bool(self.added or self.removed or self.changed)
