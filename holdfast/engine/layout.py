"""Layout: the pipelines, stages and resources as the database knows them, read once per generation."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

from holdfast.errors import UsageError
from holdfast.model import codec
from holdfast.model.declared_reads import Readings
from holdfast.model.guard_conditions import Guards
from holdfast.model.layout import Layout, PipelineRow, ResourceRow, StageRow
from holdfast.model.log_lines import logger
from holdfast.model.resource import ResourceSpec
from holdfast.model.tuning import merged
from holdfast.store import Transaction

log = logger("holdfast.store")

T = TypeVar("T")


def layout(tx: Transaction) -> Layout:
    """The pipelines as this transaction sees them."""
    known: Layout | None = (tx.store.cache if tx.snapshot is None else tx.snapshot).get("layout")
    if known is None or (tx.snapshot is None and (tx.generation == -1 or known.generation != tx.generation)):
        known = Layout.of(
            tx.generation,
            [_stage_row(row) for row in tx.run("read_stages")],
            [_resource_row(row) for row in tx.run("read_resources")],
            [_pipeline_row(row) for row in tx.run("read_pipeline_states")],
        )
        if tx.snapshot is not None:
            tx.snapshot["layout"] = known
        elif tx.generation != -1:
            tx.store.cache["layout"] = known
    return known


def record(tx: Transaction, event: str, item: int | None, stage: int, /, **facts: Any) -> None:
    """Record an event about an item at a stage."""
    tx.record(event, pipeline=layout(tx).stages[stage].pipeline, item=item, stage=stage, **facts)


def _stage_row(row: tuple[Any, ...]) -> StageRow:
    *front, after, version, max_attempts, active, created, changed, first, last = row[:13]
    compatible, children, uses, paused, reason, retry_after, paused_at, formerly = row[13:21]
    hold_next, hold_until, hold_reason, reruns, readings, type_, keep_previous = row[21:]
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
        type_,
        bool(keep_previous),
    )


def _names(text: str) -> tuple[str, ...]:
    return tuple(name for name in codec.stored(text, []) if isinstance(name, str))


def _resource_row(row: tuple[Any, ...]) -> ResourceRow:
    id_, name, spec, tuned = row
    # Limits that cannot be read admit nothing until they are declared again.
    declared, instead = codec.stored(spec, {"budget": 0}), codec.stored(tuned, {})
    return ResourceRow(id_, _readable(partial(ResourceSpec.read, name), merged(declared, instead)), declared, instead)


def _readable(read: Callable[[dict[str, Any]], T], given: dict[str, Any]) -> T:
    """Read what can be read: a newer holdfast may have written keys that this one does not know."""
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
