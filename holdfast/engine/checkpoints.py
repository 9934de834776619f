"""Checkpoints of items, read together: what each stage was made from, by which version, and what is open now."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from holdfast.engine.finish import input_hash
from holdfast.engine.register import layout
from holdfast.model import codec
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

    @property
    def passed(self) -> bool:
        return self.state in PASSED


@dataclass(slots=True)
class ItemPicture:
    """An item with the checkpoints of its stages."""

    item: int
    key: str
    data_hash: str
    made: dict[int, Checkpoint] = field(default_factory=dict)
    #: Stages that are waiting, delayed or in progress.
    open: set[int] = field(default_factory=set)

    def has_all(self, before: Sequence[int]) -> bool:
        """Whether all of these stages have passed."""
        return all(stage in self.made and self.made[stage].passed for stage in before)

    def has_other_input(self, stage: int, before: Sequence[int]) -> bool:
        """Whether a checkpoint was made from something else than the stage would be given now. What was made before inputs
        were recorded counts as made from the same."""
        recorded = self.made[stage].input_hash
        return recorded is not None and recorded != input_hash(
            self.data_hash, {parent: self.made[parent].output_hash or "" for parent in before if parent in self.made}
        )

    def is_up_to_date(self, known: Layout) -> bool:
        """Whether every result that passed was made from what its stage would be given now, and none is being made anew."""
        return all(
            stage not in self.open and self.has_all(before) and not self.has_other_input(stage, before)
            for stage, made in self.made.items() if made.passed for before in [known.parents(stage)]
        )  # fmt: skip


def read_pictures(
    tx: Transaction, rows: Sequence[tuple[int, str, str]], stages: Sequence[StageRow]
) -> list[ItemPicture]:  # fmt: skip
    """Pictures of items, given as rows of number, key and data, at these stages."""
    pictures = {item: ItemPicture(item, key, codec.digest(codec.decode(data))) for item, key, data in rows}
    which = {"items": list(pictures), "stages": [row.id for row in stages]}
    for item, stage, *made in tx.run("outcomes_of", **which):
        pictures[item].made[stage] = Checkpoint(*made)
    for item, stage in tx.run("open_stages_of", **which):
        pictures[item].open.add(stage)
    return list(pictures.values())


def pictures_of(tx: Transaction, items: Sequence[int], pipeline: str) -> list[ItemPicture]:
    """Pictures of some items of a pipeline, as they are now."""
    return read_pictures(tx, tx.run("items_by_number", items=list(items)), layout(tx).of_pipeline(pipeline))
