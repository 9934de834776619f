"""Pause: nothing more begins in a pipeline, a stage or with a resource, until a person resumes it or its time is over. Work in
progress is finished. A stage is named `PIPELINE/STAGE`.

A pause is four facts: whether, why, until when, and since when.
"""

from __future__ import annotations

from typing import Any

from holdfast.engine.layout import layout
from holdfast.engine.resource_state import BY_PERSON, lock_gates, save_gates
from holdfast.engine.selection import Who
from holdfast.errors import UsageError
from holdfast.model.breaker import Breaker
from holdfast.model.did_you_mean import there_are
from holdfast.store import Transaction


def pause(tx: Transaction, name: str, who: Who, until: int | None = None, *, resource: bool = False) -> None:
    """Let nothing more begin. A second pause replaces the first."""
    if until is not None and until <= tx.now:
        raise UsageError("a pause must end in the future")
    if resource:
        row = layout(tx).resource(name)
        if row is None:
            raise UsageError(f"there is no resource {name!r} in this store; {there_are(name, _resources(tx))}")
        for gate in (gates := lock_gates(tx, [row.id])).values():
            gate.pause(BY_PERSON, who.reason or "by a person", until)
        save_gates(tx, gates.values())
        tx.record("paused", resource=name, reason=who.reason, until=until, by=who.name)
        return
    number, stage = _place(tx, name)
    _set(tx, number, stage, paused=1, reason=who.reason or None, retry_after=until)
    tx.record("paused", pipeline=number, stage=stage, reason=who.reason, until=until, by=who.name)


def resume(tx: Transaction, name: str, who: Who, *, resource: bool = False) -> bool:
    """Let work begin again; False if nothing was paused. For a resource, this also ends a cool-down, closes an open breaker,
    and resets the rate limit."""
    known = layout(tx)
    if resource:
        row = known.resource(name)
        if row is None:
            raise UsageError(f"there is no resource {name!r} in this store; {there_are(name, _resources(tx))}")
        [gate] = lock_gates(tx, [row.id]).values()
        ahead = [until for _, _, until in tx.run("read_buckets", ids=[row.id]) if until > tx.now * 1000]
        shut = bool(gate.paused or ahead) or gate.breaker.is_open or gate.cool_until > tx.now
        if shut:
            gate.resume()
            gate.cool_until = 0
            gate.breaker = Breaker(votes_from=gate.breaker.votes_from)
            save_gates(tx, [gate])
            tx.run("empty_buckets", resource=row.id)
            tx.run("clear_refusals", ids=[row.id])
            tx.record("resumed", resource=name, reason=who.reason, by=who.name)
            tx.tell_idle_workers()
        return shut
    number, stage = _place(tx, name)
    if not (known.pipelines[name].paused if stage is None else stage in known.paused):
        return False
    _end(tx, number, stage)
    tx.record("resumed", pipeline=number, stage=stage, reason=who.reason, by=who.name)
    return True


def end_pauses(tx: Transaction) -> int:
    """Resume pipelines and stages whose pause is over; return how many."""
    over = tx.run("pauses_to_end", now=tx.now)
    for number, stage in over:
        _end(tx, number, stage)
        tx.record("resumed", pipeline=number, stage=stage, reason="the pause is over", by="")
    return len(over)


def _end(tx: Transaction, number: int, stage: int | None) -> None:
    _set(tx, number, stage, paused=0, reason=None, retry_after=None)
    if stage is not None:
        tx.run("clear_stage_refusals", stage=stage)
    tx.tell_idle_workers()


def _set(tx: Transaction, number: int, stage: int | None, **facts: Any) -> None:
    if stage is None:
        tx.run("set_pause", pipeline=number, now=tx.now, **facts)
    else:
        tx.run("set_stage_pause", stage=stage, now=tx.now, **facts)
    tx.run("raise_generation", pipeline=number, now=tx.now)
    # A claim later in this transaction must see the pause.
    tx.generation = -1


def _place(tx: Transaction, name: str) -> tuple[int, int | None]:
    """The number of the pipeline and, for `PIPELINE/STAGE`, that of the stage."""
    known = layout(tx)
    pipeline, _, stage = name.partition("/")
    row = known.pipeline(pipeline)
    if not stage:
        return row.id, None
    found = known.find(pipeline, stage)
    if found is None or not found.active:
        names = [one.name for one in known.of_pipeline(pipeline)]
        raise UsageError(f"pipeline {pipeline!r} has no stage {stage!r}; {there_are(stage, names)}")
    return row.id, found.id


def _resources(tx: Transaction) -> list[str]:
    return sorted(one.spec.name for one in layout(tx).resources.values())
