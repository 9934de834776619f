"""Register a pipeline: make what its author wrote known to the database, and read back what the database knows.

A registration that changes something raises the generation. It runs alone: whoever completes work reads the generation
under a shared lock, so every completion either was committed before the change, and the back-fill sees it, or follows
the new layout itself.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple, TypeVar

import msgspec

from holdfast.engine.pipeline_changes import Changes, changes
from holdfast.engine.rename import rename, renamed, renames
from holdfast.errors import UsageError
from holdfast.model import codec
from holdfast.model.guards import Guards
from holdfast.model.layout import Layout, PipelineRow, ResourceRow, StageRow
from holdfast.model.logs import logger
from holdfast.model.reading import EVERYTHING, Reading, Readings
from holdfast.model.resource import ResourceSpec
from holdfast.model.stage import PipelineSpec, StageSpec
from holdfast.model.states import State
from holdfast.model.tuning import merged
from holdfast.store import Transaction

log = logger("holdfast.store")

T = TypeVar("T")
#: Does work in a transaction.
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


def layout(tx: Transaction) -> Layout:
    """The pipelines as the database knows them in this transaction."""
    known: Layout | None = tx.store.cache.get("layout")
    if known is None or tx.generation == -1 or known.generation != tx.generation:
        known = Layout.of(
            tx.generation,
            [_stage_row(row) for row in tx.run("read_stages")],
            [_resource_row(row) for row in tx.run("read_resources")],
            [_pipeline_row(row) for row in tx.run("read_pipeline_states")],
        )
        if tx.generation != -1:
            tx.store.cache["layout"] = known
    return known


def is_registered(tx: Transaction, spec: PipelineSpec) -> bool:
    """Whether registering would change nothing; a look that keeps nobody waiting."""
    same_file = not spec.origin or [(spec.origin,)] == [tuple(row) for row in tx.run("origin_of", name=spec.name)]
    return same_file and not _differs(tx, _stages_of(tx, spec.name), spec)


def _differs(tx: Transaction, there: Mapping[str, StageRow], spec: PipelineSpec) -> bool:
    return bool(renames(there, spec)) or _Plan(there, spec, _provenance(tx, spec.name)).anything


def as_registered(tx: Transaction, specs: Iterable[PipelineSpec]) -> Layout:
    """The pipelines as they would be if these were registered. Stages that are not there yet have numbers below zero."""
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
            rows.append(replace(row, version=stage.version, compatible=stage.compatible_from, readings=readings))
        rows += [replace(row, active=False) for row in there.values()]
    return Layout.of(known.generation, rows, known.resources.values(), known.pipelines.values())


def changes_of(tx: Transaction, spec: PipelineSpec) -> Changes:
    """What registering would change, with its price."""
    return changes(tx, spec, _stages_of(tx, spec.name))


def register(tx: Transaction, spec: PipelineSpec, *, accepted: bool = True) -> Registered:
    """Add, change, rename and retire stages so that the database has this pipeline. New work that has a price is put on hold
    unless somebody has accepted it. The transaction must be exclusive."""
    # Nothing remembered will do here: a back-fill moves on without raising the generation. And what is read from here on
    # belongs to a generation that is not committed yet, and must not be kept.
    tx.store.cache.pop("layout", None)
    tx.generation = -1
    tx.run("add_pipeline", name=spec.name, now=tx.now)
    [pipeline] = [row[0] for row in tx.run("read_pipelines") if row[1] == spec.name]
    there = _stages_of(tx, spec.name)
    priced = {} if accepted else changes(tx, spec, there).priced
    if spec.origin:
        tx.run("set_origin", pipeline=pipeline, origin=spec.origin)
    if found := renames(there, spec):
        rename(tx, there, found)
        there = _stages_of(tx, spec.name)
    provenance = _provenance(tx, spec.name)
    plan = _Plan(there, spec, provenance)
    if not (found or plan.anything):
        return Registered([], [], [], [], [])
    [(generation,)] = tx.run("raise_generation", pipeline=pipeline, now=tx.now)
    [(newest,)] = tx.run("newest_item", pipeline=pipeline)
    for position, stage in enumerate(spec.stages):
        begins = _Begins.of(newest, priced.get(stage.name))
        columns = _columns(stage, position, _readings(there.get(stage.name), stage, provenance))
        if stage.name in plan.added:
            tx.run(
                "add_stage", pipeline=pipeline, name=stage.name, generation=generation, **columns, **begins._asdict()
            )
        else:
            old = there[stage.name]
            moved = stage.name in plan.moved
            if old.hold_next is not None:
                # Nobody has accepted its price meanwhile.
                begins = _Begins.of(newest, old.hold_reason)
            tx.run(
                "change_stage",
                stage=old.id,
                active=1,
                **columns,
                changed=generation if moved else old.changed_generation,
                **(begins if moved else _Begins.as_is(old))._asdict(),
            )
    for old in plan.removed:
        tx.run(
            "change_stage",
            stage=old.id,
            position=old.position,
            after=msgspec.json.encode(old.after).decode(),
            version=old.version,
            max_attempts=old.max_attempts,
            compatible=msgspec.json.encode(old.compatible).decode(),
            after_children=old.after_children,
            resources=msgspec.json.encode(old.uses).decode(),
            max_reruns_per_hour=old.max_reruns_per_hour,
            readings=old.readings.write(),
            active=0,
            changed=generation,
            **_Begins()._asdict(),
        )
    _withdraw(tx, [there[name] for name in sorted(plan.moved)], spec)
    if plan.moved and newest:
        # What a stage is given may be something else now, in any item.
        tx.run("begin_recheck", pipeline=pipeline, generation=generation)
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


def _stages_of(tx: Transaction, pipeline: str) -> dict[str, StageRow]:
    return {row.name: row for row in layout(tx).all_of(pipeline)}


def _provenance(tx: Transaction, pipeline: str) -> tuple[str, ...]:
    row = layout(tx).pipelines.get(pipeline)
    return () if row is None else row.provenance


def _readings(row: StageRow | None, stage: StageSpec, provenance: Iterable[str]) -> Readings:
    before = EVERYTHING if row is None else row.readings
    return before.changed_to(Reading.of_stage(stage.reads, provenance))


def learn_provenance(pipeline: str, merge: object, read: InTransaction, write: InTransaction) -> None:
    """From now on what a merge function says is provenance is input of no stage that does not name it."""
    fields = frozenset(getattr(merge, "provenance", ()))
    if fields and not read(lambda tx: fields.issubset(_provenance(tx, pipeline))):
        write(lambda tx: _declare_provenance(tx, pipeline, fields))


def _declare_provenance(tx: Transaction, pipeline: str, fields: Iterable[str]) -> None:
    tx.store.cache.pop("layout", None)
    tx.generation = -1
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
    }


class _Begins(NamedTuple):
    """For which items that were there before it a stage is still to begin, and for which to be put on hold."""

    next: int | None = None
    until: int | None = None
    hold_next: int | None = None
    hold_until: int | None = None
    hold_reason: str | None = None

    @classmethod
    def of(cls, newest: int, price: str | None) -> _Begins:
        """All up to the newest; nothing to look at if there are no items yet."""
        if not newest:
            return cls()
        return cls(1, newest) if price is None else cls(hold_next=1, hold_until=newest, hold_reason=price)

    @classmethod
    def as_is(cls, row: StageRow) -> _Begins:
        return cls(row.backfill_next, row.backfill_until, row.hold_next, row.hold_until, row.hold_reason)


def _withdraw(tx: Transaction, moved: list[StageRow], spec: PipelineSpec) -> None:
    """Open work of a stage that was put behind another one waits for that one now: it begins again when it has passed."""
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
    """What differs between the stages that are there and those of a specification."""

    def __init__(self, there: Mapping[str, StageRow], spec: PipelineSpec, provenance: Iterable[str]) -> None:
        self.added = {stage.name for stage in spec.stages if stage.name not in there}
        self.removed = [row for name, row in there.items() if row.active and name not in {s.name for s in spec.stages}]
        self.changed: set[str] = set()
        #: Back after having been removed, or with other stages before it: items may have to be looked at again.
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
            ) != (
                stage.version,
                stage.max_attempts,
                position,
                stage.compatible_from,
                stage.resources,
                stage.max_reruns_per_hour,
                _readings(row, stage, provenance),
            ):
                self.changed.add(stage.name)

    @property
    def anything(self) -> bool:
        return bool(self.added or self.removed or self.changed)


def _stage_row(row: tuple[Any, ...]) -> StageRow:
    *front, after, version, max_attempts, active, created, changed, first, last = row[:13]
    compatible, children, uses, paused, reason, retry_after, paused_at, formerly = row[13:21]
    hold_next, hold_until, hold_reason, reruns, readings = row[21:]
    id_, pipeline, pipeline_name, name, position = front
    return StageRow(
        id_,
        pipeline,
        pipeline_name,
        name,
        position,
        _names(after),
        version,
        max_attempts,
        bool(active),
        created,
        changed,
        first,
        last,
        _names(compatible),
        children,
        _names(uses),
        bool(paused),
        reason,
        retry_after,
        paused_at,
        _names(formerly),
        hold_next,
        hold_until,
        hold_reason,
        reruns,
        Readings.read(readings),
    )


def _names(text: str) -> tuple[str, ...]:
    return tuple(name for name in codec.stored(text, []) if isinstance(name, str))


def _resource_row(row: tuple[Any, ...]) -> ResourceRow:
    id_, name, spec, tuned = row
    # Limits that cannot be read let nothing in until they are declared anew.
    declared, instead = codec.stored(spec, {"budget": 0}), codec.stored(tuned, {})
    return ResourceRow(id_, _readable(partial(ResourceSpec.read, name), merged(declared, instead)), declared, instead)


def _readable(read: Callable[[dict[str, Any]], T], given: dict[str, Any]) -> T:
    """A newer holdfast may have written what this one cannot read; it goes without that, rather than not at all."""
    try:
        return read(given)
    except UsageError as error:
        log.warning("a limit or guard in the store cannot be read and is left out: %s", error)
    kept: dict[str, Any] = {}
    for key, value in given.items():
        try:
            read({**kept, key: value})
        except UsageError:
            continue
        kept[key] = value
    return read(kept)


def _pipeline_row(row: tuple[Any, ...]) -> PipelineRow:
    id_, name, paused, reason, retry_after, paused_at, guards, tuned, provenance = row
    declared, instead = codec.stored(guards, {}), codec.stored(tuned, {})
    together = _readable(Guards.read, merged(declared, instead))
    return PipelineRow(
        id_,
        name,
        bool(paused),
        reason,
        retry_after,
        paused_at,
        together,
        declared,
        instead,
        _names(provenance),
    )
