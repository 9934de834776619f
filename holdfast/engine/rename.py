"""Rename: a stage that its author calls otherwise is the same stage. It keeps its number, and with it its results, records,
payments and history.

A stage is known again by what its author says (`renamed_from=`), and by what it was called before: a worker that still has
the old name, or a return to it, means the same stage.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import NamedTuple

import msgspec

from holdfast.errors import DefinitionError
from holdfast.model.layout import StageRow
from holdfast.model.stage import PipelineSpec
from holdfast.model.states import State
from holdfast.model.tuning import own_resource
from holdfast.store import Transaction


class Rename(NamedTuple):
    """A stage, and what it is called from now on."""

    row: StageRow
    name: str
    #: Who goes by that name already: the new name was used before anybody said that the stage is the same.
    newcomer: StageRow | None = None


def renames(there: Mapping[str, StageRow], spec: PipelineSpec) -> list[Rename]:
    """Which of the stages that are there go by another name in a specification."""
    names = {stage.name for stage in spec.stages}
    gone = {name: row for name, row in there.items() if name not in names}
    found = []
    for stage in spec.stages:
        row = gone.get(stage.renamed_from or "")
        if row is None and stage.name not in there:
            row = next((one for one in gone.values() if one.active and stage.name in one.formerly), None)
        if row is not None:
            found.append(Rename(row, stage.name, there.get(stage.name)))
    return found


def renamed(there: Mapping[str, StageRow], found: list[Rename]) -> dict[str, StageRow]:
    """The stages that are there, by the names that they will have."""
    called = {one.row.name: one.name for one in found}
    after = {name: row for name, row in there.items() if name not in called.values()}
    return {called.get(name, name): _called(row, called) for name, row in after.items()}


def rename(tx: Transaction, there: Mapping[str, StageRow], found: list[Rename]) -> None:
    """Carry it out. The transaction must be exclusive."""
    called = {one.row.name: one.name for one in found}
    for row, name, newcomer in found:
        if newcomer is not None:
            _join(tx, newcomer, row, [other.id for other in there.values() if name in other.after])
        formerly = sorted({*row.formerly, row.name} - {name})
        tx.run("rename_stage", stage=row.id, name=name, formerly=msgspec.json.encode(formerly).decode())
        former, own = (own_resource(row.pipeline_name, one) for one in (row.name, name))
        tx.run("rename_resource", former=former, name=own)
        tx.record("stage_renamed", pipeline=row.pipeline, stage=row.id, was=row.name, name=name)
    for row in there.values():
        after = _called(row, called).after
        if after != row.after:
            tx.run("rename_before", stage=row.id, after=msgspec.json.encode(after).decode())


def _join(tx: Transaction, newcomer: StageRow, into: StageRow, after: list[int]) -> None:
    """Let what a stage has done under its new name be part of the stage that it is."""
    both = f"stage {newcomer.label!r} is renamed_from={into.name!r}, but"
    [(busy,)] = tx.run("leases_of_stage", stage=newcomer.id)
    if busy:
        raise DefinitionError(
            f"{both} {busy} of its items are being worked on under the new name: stop those workers first"
        )
    places = {"stage": newcomer.id, "into": into.id}
    [(twice,)] = tx.run("results_of_both", **places)
    if twice:
        raise DefinitionError(
            f"{both} {twice} items have results of both, and neither can be thrown away; without renamed_from= they stay "
            "two stages"
        )
    for statement, more in (("join_waiting", {}), ("join_delayed", {"now": tx.now})):
        tx.count(into.id, State.PENDING, len(tx.run(statement, **places, **more)))
    for table in ("waiting", "delayed", "holds"):
        tx.run(f"leave_{table}", stage=newcomer.id)
    if after:
        tx.run("join_inputs", stage=newcomer.id, after=after)
    for table in ("outcomes", "memos", "calls", "money", "counts", "versions", "error_groups", "events"):
        tx.run(f"join_{table}", **places)
    for table in ("memos", "money", "counts", "versions", "error_groups"):
        tx.run(f"leave_{table}", stage=newcomer.id)
    # No author can call a stage so.
    tx.run("retire_stage", stage=newcomer.id, name=f"{newcomer.name}~{newcomer.id}")


def _called(row: StageRow, called: Mapping[str, str]) -> StageRow:
    """A stage as it is when these have other names."""
    after = tuple(called.get(name, name) for name in row.after)
    return replace(row, name=called.get(row.name, row.name), after=after)
