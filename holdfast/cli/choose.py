"""Which of the pipelines in FILE a command is about."""

from __future__ import annotations

from holdfast.errors import UsageError
from holdfast.model.did_you_mean import there_are
from holdfast.model.stage import PipelineSpec


def one_pipeline(file: str, specs: list[PipelineSpec], wanted: str | None) -> str:
    """The pipeline that is wanted, or the only one there is."""
    names = [spec.name for spec in specs]
    if wanted is None and len(names) > 1:
        raise UsageError(f"{file} has several pipelines ({', '.join(names)}): say which with --pipeline")
    if wanted is not None and wanted not in names:
        raise UsageError(f"{file} has no pipeline {wanted!r}; {there_are(wanted, names)}")
    return wanted or names[0]


def some_pipelines(file: str, specs: list[PipelineSpec], wanted: str | None, stage: str | None) -> list[str]:
    """The pipeline that is wanted, or all of them; with a stage, those that have it."""
    chosen = [spec for spec in specs if wanted is None or spec.name == one_pipeline(file, specs, wanted)]
    found = [spec.name for spec in chosen if stage is None or stage in {one.name for one in spec.stages}]
    if not found:
        known = [one.name for spec in chosen for one in spec.stages]
        raise UsageError(f"{wanted or file} has no stage {stage!r}; {there_are(stage, known)}")
    return found
