"""Checkpoints of items, read together: what each stage was made from, by which version, and what is open now."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from holdfast.engine.finish import input_hash
from holdfast.engine.layout import layout
from holdfast.model import codec
from holdfast.model.layout import Layout, StageRow
from holdfast.model.reading import Reading, tagged
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
        """Whether a checkpoint was made from something else than the stage would be given now, as far as it was read then.
        What was made before inputs were recorded counts as made from the same."""
        recorded = self.made[row.id].input_hash
        if recorded is None:
            return False
        number, _ = row.readings.recorded(recorded)
        return recorded != self.input_hash(row, before, number)

    def input_hash(self, row: StageRow, before: Sequence[int], number: int | None = None) -> str:
        """What a stage would be given now, as it is read today or, with a number, was read at some time."""
        number = row.readings.number if number is None else number
        reading = row.readings.known[number]
        if reading not in self._digests:
            self._digests[reading] = reading.digest(self.data)
        outputs = {parent: self.made[parent].output_hash or "" for parent in before if parent in self.made}
        return tagged(number, input_hash(self._digests[reading], outputs))

    def is_up_to_date(self, known: Layout) -> bool:
        """Whether every result that passed was made from what its stage would be given now, and none is being made anew."""
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
    """The data of these items, given as rows of number, key and data, is about to change. What was made from it before the
    stage came to read something else is recorded as if it had been read as today: only so can it be told whether the change
    concerns it."""
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
