"""The pipelines as the database knows them: stages by number, and who comes after whom.

The author's specification says how to run a stage; the layout says which stages exist, also those that another
deployment registered and this process has no handler for. Whoever completes a stage follows the layout, so that a
worker of yesterday still hands its items on to a stage that was added today.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class StageRow:
    """A stage as registered."""

    id: int
    pipeline: int
    pipeline_name: str
    name: str
    position: int
    after: tuple[str, ...]
    version: str
    max_attempts: int
    active: bool
    created_generation: int
    changed_generation: int
    backfill_next: int | None
    backfill_until: int | None
    #: Earlier versions whose results still stand.
    compatible: tuple[str, ...] = ()
    #: The pipeline whose items, as children of this one's, must have ended before.
    after_children: str | None = None

    def stands(self, version: str | None) -> bool:
        """Whether a result of this version is as good as one of today's."""
        return version == self.version or version in self.compatible

    @property
    def label(self) -> str:
        return f"{self.pipeline_name}/{self.name}"


@dataclass(frozen=True, slots=True)
class Successors:
    """What a completed stage leads to."""

    #: These were born with or after everything before them: no row of theirs can exist yet, none needs to be looked for.
    simple: tuple[int, ...]
    #: These meet other stages, or were there first: decided with the item locked.
    checked: tuple[int, ...]


@dataclass(frozen=True)
class Layout:
    """Every registered stage, at one generation."""

    generation: int
    stages: dict[int, StageRow]
    _by_name: dict[tuple[str, str], StageRow] = field(default_factory=dict)
    _successors: dict[int, Successors] = field(default_factory=dict)
    _parents: dict[int, tuple[int, ...]] = field(default_factory=dict)

    @classmethod
    def of(cls, generation: int, rows: Iterable[StageRow]) -> Layout:
        layout = cls(generation, {row.id: row for row in rows})
        for row in layout.stages.values():
            layout._by_name[row.pipeline_name, row.name] = row
        for row in layout.stages.values():
            layout._parents[row.id] = tuple(
                layout._by_name[row.pipeline_name, before].id
                for before in row.after
                if (row.pipeline_name, before) in layout._by_name
            )
        for row in layout.stages.values():
            layout._successors[row.id] = layout._find_successors(row)
        return layout

    def find(self, pipeline: str, stage: str) -> StageRow | None:
        return self._by_name.get((pipeline, stage))

    def of_pipeline(self, pipeline: str) -> list[StageRow]:
        """The active stages of a pipeline, in order."""
        return sorted(
            (row for row in self.stages.values() if row.pipeline_name == pipeline and row.active),
            key=lambda row: row.position,
        )

    def number_of(self, pipeline: str) -> int | None:
        """The number of a pipeline."""
        return next((row.pipeline for row in self.stages.values() if row.pipeline_name == pipeline), None)

    def awaiting_children_of(self, pipeline: str) -> list[StageRow]:
        """Stages that wait for children in this pipeline."""
        return [row for row in self.stages.values() if row.active and row.after_children == pipeline]

    def parents(self, stage: int) -> tuple[int, ...]:
        return self._parents[stage]

    def successors(self, stage: int) -> Successors:
        return self._successors[stage]

    def _find_successors(self, stage: StageRow) -> Successors:
        simple: list[int] = []
        checked: list[int] = []
        for other in self.stages.values():
            if other.active and stage.id in self._parents[other.id]:
                untouched = (
                    stage.changed_generation <= other.created_generation == other.changed_generation
                    and len(self._parents[other.id]) == 1
                    and other.after_children is None
                )
                (simple if untouched else checked).append(other.id)
        return Successors(tuple(simple), tuple(checked))
