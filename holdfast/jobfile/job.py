"""A job: the content of a job file, checked, with its functions found."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from holdfast.jobfile.environment import Secrets
from holdfast.model.stage import PipelineSpec
from holdfast.model.tuning import Tuning


class AsWritten(NamedTuple):
    """A source or an alert that has not been read yet."""

    name: str
    given: Mapping[str, Any]


@dataclass(frozen=True, slots=True, repr=False)
class JobDefinition:
    """What a job is (its spec) and how fast it may go (its tuning: `tunings` and `resources`).

    Any part of it may hold what a variable brought in; its `repr` shows none of that.
    """

    path: Path
    store: str | None
    pipelines: tuple[PipelineSpec, ...]
    #: Limits by name of resource, as they were written and checked.
    resources: Mapping[str, Mapping[str, Any]]
    #: By pipeline; every pipeline has one.
    tunings: Mapping[str, Tuning]
    #: By pipeline: what `read_source` made of each, or `AsWritten`.
    sources: Mapping[str, tuple[Any, ...]]
    #: By pipeline, for those that name one.
    merges: Mapping[str, Callable[[dict[str, Any], dict[str, Any]], dict[str, Any]]]
    #: What `read_alert` made of each, or `AsWritten`.
    alerts: tuple[Any, ...]
    secrets: Secrets = field(compare=False)
    #: Sources (by pipeline and name) and alerts as they were written, to see whether they have changed.
    written: Mapping[str, Any]
    #: Where content is kept that handlers keep.
    blobs: str | None = None

    def __repr__(self) -> str:
        return f"JobDefinition({str(self.path)!r}, pipelines={[one.name for one in self.pipelines]})"
