"""The pipelines as the database knows them: stages by number, and the order among them.

The author's specification says how to run a stage. The layout says which stages exist, including those that another
deployment registered and this process has no handler for. Completing a stage follows the layout, so that an old worker
hands its items on to a stage that was added later.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from holdfast.errors import UsageError
from holdfast.model.declared_reads import EVERYTHING, Readings
from holdfast.model.did_you_mean import there_are
from holdfast.model.guard_conditions import Guards
from holdfast.model.resource import ResourceSpec
from holdfast.model.stage import MAX_RERUNS_PER_HOUR
from holdfast.model.tuning import own_resource


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
    #: Earlier versions whose results are still valid.
    compatible: tuple[str, ...] = ()
    #: The pipeline whose items, submitted as children, must have ended first.
    after_children: str | None = None
    #: The names of the resources that an attempt uses, as its author wrote them.
    uses: tuple[str, ...] = ()
    #: Whether the stage itself is paused, why, until when, and since when.
    paused: bool = False
    reason: str | None = None
    retry_after: int | None = None
    paused_at: int | None = None
    #: What it was called before.
    formerly: tuple[str, ...] = ()
    #: Which of the earlier items are still to be put on hold, and why.
    hold_next: int | None = None
    hold_until: int | None = None
    hold_reason: str | None = None
    #: How often its items may rerun each other within an hour.
    max_reruns_per_hour: int = MAX_RERUNS_PER_HOUR
    #: Which part of an item's data is its input.
    readings: Readings = EVERYTHING
    #: The fingerprint of the type of its results.
    type: str | None = None
    #: Whether a result that is replaced is kept beside the new one.
    keep_previous: bool = False

    def stands(self, version: str | None) -> bool:
        """Whether a result of this version is still valid."""
        return version == self.version or version in self.compatible

    @property
    def label(self) -> str:
        return f"{self.pipeline_name}/{self.name}"


@dataclass(frozen=True, slots=True)
class ResourceRow:
    """A resource as registered, with the settings that a person has overridden."""

    id: int
    spec: ResourceSpec
    declared: Mapping[str, Any]
    tuned: Mapping[str, Any]

    @property
    def is_own(self) -> bool:
        """Whether these are the limits of one pipeline or stage, which no call can name."""
        return self.spec.name.startswith("@")


@dataclass(frozen=True, slots=True)
class PipelineRow:
    """Whether a pipeline is paused, why and until when; and its guards."""

    id: int
    name: str
    paused: bool
    reason: str | None
    retry_after: int | None
    paused_at: int | None
    guards: Guards
    declared: Mapping[str, Any]
    tuned: Mapping[str, Any]
    #: Fields of its items' data that are input only of stages that name them.
    provenance: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Successors:
    """The stages after a completed one."""

    #: Registered with or after all stages before them: no row of theirs can exist yet, so none is looked for.
    simple: tuple[int, ...]
    #: Join several stages, or were registered first: decided with the item locked.
    checked: tuple[int, ...]

    def __bool__(self) -> bool:
        return bool(self.simple or self.checked)


@dataclass(frozen=True)
class Layout:
    """Every registered stage, at one generation."""

    generation: int
    stages: dict[int, StageRow]
    resources: dict[int, ResourceRow] = field(default_factory=dict)
    pipelines: dict[str, PipelineRow] = field(default_factory=dict)
    #: Stages that are paused themselves.
    paused: frozenset[int] = frozenset()
    #: Stages that wait for children which may wait, directly or not, for items of the stage's own pipeline.
    may_wait_in_cycle: frozenset[int] = frozenset()
    _by_name: dict[tuple[str, str], StageRow] = field(default_factory=dict)
    _by_pipeline: dict[str, list[StageRow]] = field(default_factory=dict)
    #: By stage: the resources that an attempt uses, including those of its pipeline and its own; and the reverse.
    _used: dict[int, tuple[int, ...]] = field(default_factory=dict)
    _users: dict[int, tuple[int, ...]] = field(default_factory=dict)
    _successors: dict[int, Successors] = field(default_factory=dict)
    _parents: dict[int, tuple[int, ...]] = field(default_factory=dict)

    @classmethod
    def of(
        cls,
        generation: int,
        rows: Iterable[StageRow],
        resources: Iterable[ResourceRow] = (),
        pipelines: Iterable[PipelineRow] = (),
    ) -> Layout:
        stages = {row.id: row for row in rows}
        layout = cls(
            generation,
            stages,
            {one.id: one for one in resources},
            {one.name: one for one in pipelines},
            frozenset(row.id for row in stages.values() if row.paused),
            _may_wait_in_cycle(stages.values()),
        )
        layout._join_resources()
        for row in layout.stages.values():
            layout._by_name[row.pipeline_name, row.name] = row
            layout._by_pipeline.setdefault(row.pipeline_name, []).append(row)
        for row in layout.stages.values():
            layout._parents[row.id] = tuple(
                layout._by_name[row.pipeline_name, before].id
                for before in row.after
                if (row.pipeline_name, before) in layout._by_name
            )
        layout._find_successors()
        return layout

    def find(self, pipeline: str, stage: str) -> StageRow | None:
        return self._by_name.get((pipeline, stage))

    def pipeline(self, name: str) -> PipelineRow:
        """The pipeline of this name; an error if there is none."""
        if name not in self.pipelines:
            raise UsageError(f"there is no pipeline {name!r} in this store; {there_are(name, sorted(self.pipelines))}")
        return self.pipelines[name]

    def chosen(self, pipeline: str | None, stage: str | None) -> list[StageRow]:
        """The stages that a filter selects, including removed ones; an error if a name does not exist."""
        if pipeline is not None:
            self.pipeline(pipeline)
        there = list(self.stages.values()) if pipeline is None else self.all_of(pipeline)
        found = [row for row in there if stage in (None, row.name)]
        if not found and stage is not None:
            where = "this store" if pipeline is None else f"pipeline {pipeline!r}"
            raise UsageError(
                f"there is no stage {stage!r} in {where}; {there_are(stage, sorted({row.name for row in there}))}"
            )
        return found

    def all_of(self, pipeline: str) -> list[StageRow]:
        """The stages of a pipeline, including removed ones."""
        return self._by_pipeline.get(pipeline, [])

    def of_pipeline(self, pipeline: str) -> list[StageRow]:
        """The active stages of a pipeline, in order."""
        return sorted((row for row in self.all_of(pipeline) if row.active), key=lambda row: row.position)

    def number_of(self, pipeline: str) -> int | None:
        """The number of a pipeline."""
        return next((row.pipeline for row in self.all_of(pipeline)), None)

    def awaiting_children_of(self, pipeline: str) -> list[StageRow]:
        """Stages that wait for children in this pipeline."""
        return [row for row in self.stages.values() if row.active and row.after_children == pipeline]

    def resources_of(self, stage: int) -> tuple[int, ...]:
        """The resources that an attempt at a stage uses; most use none."""
        return self._used.get(stage, ())

    def limits_of_its_own(self, stage: int) -> list[ResourceRow]:
        """The limits that a stage and its pipeline have themselves."""
        used = [self.resources[number] for number in self.resources_of(stage)]
        return [one for one in used if one.is_own]

    def users_of(self, resource: int) -> tuple[int, ...]:
        """The stages whose attempts use a resource."""
        return self._users.get(resource, ())

    def hand_over_seconds(self, stage: int) -> float | None:
        """How late an attempt at a stage may begin after it was granted; None for no limit."""
        limits = [self.resources[number].spec.hand_over_seconds for number in self.resources_of(stage)]
        return min((limit for limit in limits if limit is not None), default=None)

    def resource(self, name: str) -> ResourceRow | None:
        return next((one for one in self.resources.values() if one.spec.name == name), None)

    def resource_of_call(self, row: StageRow, named: str | None) -> str:
        """The resource that a call at a stage is about: the one it names, if it exists; else the first that the stage uses;
        empty if it uses none. Its money, its pauses and its refused keys all count for this one."""
        found = None if named is None else self.resource(named)
        if found is not None and not found.is_own:
            return found.spec.name
        return row.uses[0] if row.uses else ""

    def _join_resources(self) -> None:
        by_name = {one.spec.name: one for one in self.resources.values()}
        for row in self.stages.values():
            own = (own_resource(row.pipeline_name), own_resource(row.pipeline_name, row.name))
            used = [by_name[name].id for name in row.uses if name in by_name]
            used += [by_name[name].id for name in own if name in by_name and by_name[name].spec.limits_anything]
            if used:
                self._used[row.id] = tuple(sorted(used))
        users: dict[int, list[int]] = {}
        for stage, used_by_it in self._used.items():
            for number in used_by_it:
                users.setdefault(number, []).append(stage)
        self._users.update({number: tuple(stages) for number, stages in users.items()})

    def parents(self, stage: int) -> tuple[int, ...]:
        return self._parents[stage]

    def successors(self, stage: int) -> Successors:
        return self._successors[stage]

    def _find_successors(self) -> None:
        simple: dict[int, list[int]] = {}
        checked: dict[int, list[int]] = {}
        for row in self.stages.values():
            for before in dict.fromkeys(self._parents[row.id]) if row.active else ():
                untouched = (
                    self.stages[before].changed_generation <= row.created_generation == row.changed_generation
                    and len(self._parents[row.id]) == 1
                    and row.after_children is None
                )
                (simple if untouched else checked).setdefault(before, []).append(row.id)
        for number in self.stages:
            self._successors[number] = Successors(tuple(simple.get(number, ())), tuple(checked.get(number, ())))


def _may_wait_in_cycle(rows: Iterable[StageRow]) -> frozenset[int]:
    waiting = [row for row in rows if row.active and row.after_children is not None]
    waits_for: dict[str, list[str]] = {}
    for row in waiting:
        waits_for.setdefault(row.pipeline_name, []).append(row.after_children or "")
    return frozenset(row.id for row in waiting if row.pipeline_name in _reached(row.after_children or "", waits_for))


def _reached(pipeline: str, waits_for: Mapping[str, Sequence[str]]) -> set[str]:
    """The pipelines that one waits for, directly or not, and itself."""
    seen: set[str] = set()
    todo = [pipeline]
    while todo:
        one = todo.pop()
        if one not in seen:
            seen.add(one)
            todo += waits_for.get(one, ())
    return seen
