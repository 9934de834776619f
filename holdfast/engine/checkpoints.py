"""Checkpoints of items, read together: the input and version of each result, and which stages are open."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from holdfast.engine.finish_leases import input_hash
from holdfast.engine.layout import layout
from holdfast.model import codec
from holdfast.model.declared_reads import Reading, tagged
from holdfast.model.layout import Layout, StageRow
from holdfast.model.states import PASSED
from holdfast.store import Transaction


class Checkpoint(NamedTuple):
    """The outcome of a stage, without its result."""

    state: str
    version: str | None
    input_hash: str | None
    output_hash: str | None
    #: What it cost and how long it took.
    cost: int
    took_us: int | None
    #: The fingerprint of the type that it was checked against.
    type: str | None

    @property
    def passed(self) -> bool:
        return self.state in PASSED


@dataclass(slots=True)
class ItemPicture:
    """An item with the checkpoints of its stages."""

    item: int
    key: str
    data: Any
    made: dict[int, Checkpoint] = field(default_factory=dict)
    #: Stages that are waiting, delayed or in progress.
    open: set[int] = field(default_factory=set)
    _digests: dict[Reading, str] = field(default_factory=dict)

    def has_all(self, before: Sequence[int]) -> bool:
        """Whether all of these stages have passed."""
        return all(stage in self.made and self.made[stage].passed for stage in before)

    def has_other_input(self, row: StageRow, before: Sequence[int]) -> bool:
        """Whether the input of a stage has changed since its checkpoint, in the fields that it read then. A checkpoint
        without a recorded input counts as unchanged."""
        recorded = self.made[row.id].input_hash
        if recorded is None:
            return False
        number, _ = row.readings.recorded(recorded)
        return recorded != self.input_hash(row, before, number)

    def input_hash(self, row: StageRow, before: Sequence[int], number: int | None = None) -> str:
        """The hash of a stage's input now, in the fields that it reads today or, with a number, read at an earlier time."""
        number = row.readings.number if number is None else number
        reading = row.readings.known[number]
        if reading not in self._digests:
            self._digests[reading] = reading.digest(self.data)
        outputs = {parent: self.made[parent].output_hash or "" for parent in before if parent in self.made}
        return tagged(number, input_hash(self._digests[reading], outputs))

    def is_up_to_date(self, known: Layout) -> bool:
        """Whether every passed result was made from its stage's current input, and none is being made again."""
        return all(
            stage not in self.open and self.has_all(before) and not self.has_other_input(known.stages[stage], before)
            for stage, made in self.made.items()
            if made.passed
            for before in [known.parents(stage)]
        )


def read_pictures(
    tx: Transaction, rows: Sequence[tuple[int, str, str]], stages: Sequence[StageRow]
) -> list[ItemPicture]:
    """Pictures of items, given as rows of number, key and data, at these stages."""
    pictures = {item: ItemPicture(item, key, codec.shown(data)) for item, key, data in rows}
    which = {"items": list(pictures), "stages": [row.id for row in stages]}
    for item, stage, *made in tx.run("outcomes_of", **which):
        pictures[item].made[stage] = Checkpoint(*made)
    for item, stage in tx.run("open_stages_of", **which):
        pictures[item].open.add(stage)
    return list(pictures.values())


def pictures_of(tx: Transaction, items: Sequence[int], pipeline: str) -> list[ItemPicture]:
    """Pictures of some items of a pipeline, as they are now."""
    return read_pictures(tx, tx.run("items_by_number", items=list(items)), layout(tx).of_pipeline(pipeline))


def read_anew(tx: Transaction, pipeline: str, rows: Sequence[tuple[int, str, str]]) -> None:
    """Prepare items, given as rows of number, key and data, for a change of their data. Inputs recorded before a stage read
    other fields are converted to the fields it reads today: otherwise nobody could tell whether the change affects it."""
    known = layout(tx)
    stages = [row for row in known.of_pipeline(pipeline) if len(row.readings.known) > 1]
    if not stages or not rows:
        return
    again: list[tuple[int, int, str, str]] = []
    for picture in read_pictures(tx, rows, known.of_pipeline(pipeline)):
        for row in stages:
            made, before = picture.made.get(row.id), known.parents(row.id)
            if made is None or made.input_hash is None or picture.has_other_input(row, before):
                continue
            if (today := picture.input_hash(row, before)) != made.input_hash:
                again.append((picture.item, row.id, made.input_hash, today))
    tx.run_rows("set_inputs", again)
