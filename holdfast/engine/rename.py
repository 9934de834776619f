"""Rename: a stage with a new name is the same stage. It keeps its number, and with it its results, payments and history.

A stage is recognised by `renamed_from=`, and by its former names: a worker that still uses an old name, or a return to it,
means the same stage.
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
    """A stage, and its new name."""

    row: StageRow
    name: str
    #: The stage that has this name already: the new name was used before `renamed_from=` was declared.
    newcomer: StageRow | None = None


def renames(there: Mapping[str, StageRow], spec: PipelineSpec) -> list[Rename]:
    """The registered stages that have another name in a specification."""
    names = {stage.name for stage in spec.stages}
    gone = {name: row for name, row in there.items() if name not in names}
    found = []
    for stage in spec.stages:
        row = gone.get(stage.renamed_from) if stage.renamed_from else None
        if row is None and stage.name not in there:
            row = next((one for one in gone.values() if one.active and stage.name in one.formerly), None)
        if row is not None:
            found.append(Rename(row, stage.name, there.get(stage.name)))
    return found


def renamed(there: Mapping[str, StageRow], found: list[Rename]) -> dict[str, StageRow]:
    """The registered stages by their new names."""
    called = {one.row.name: one.name for one in found}
    after = {name: row for name, row in there.items() if name not in called.values()}
    return {called.get(name, name): _called(row, called) for name, row in after.items()}


def rename(tx: Transaction, there: Mapping[str, StageRow], found: list[Rename]) -> None:
    """Rename stages. The transaction must be exclusive."""
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
    """Merge what a stage has done under its new name into the original stage."""
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
            f"{both} {twice} items have results of both, and neither may be lost; without renamed_from= they stay "
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
    # Not a valid name, so no pipeline can use it.
    tx.run("retire_stage", stage=newcomer.id, name=f"{newcomer.name}~{newcomer.id}")


def _called(row: StageRow, called: Mapping[str, str]) -> StageRow:
    """A stage after renaming these."""
    after = tuple(called.get(name, name) for name in row.after)
    return replace(row, name=called.get(row.name, row.name), after=after)
