"""Pipeline: what a user writes. Named stages, items, and `run`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Literal, TypeVar

from holdfast.app import Holdfast, Summary
from holdfast.engine.add import Added, Merge, overwrite
from holdfast.errors import DefinitionError
from holdfast.model.backoff import Backoff
from holdfast.model.durations import Duration, seconds
from holdfast.model.stage import PipelineSpec, StageSpec, check_name
from holdfast.worker import Settings

Function = TypeVar("Function", bound=Callable[..., Any])


class Pipeline:
    """Named stages that every item passes.

    books = Pipeline("books")

    @books.stage()
    def extract(item, ctx): ...
    """

    def __init__(self, name: str, *, store: str | None = None) -> None:
        check_name(name, "pipeline")
        self.name = name
        self.store = store
        self._stages: dict[str, StageSpec] = {}

    def stage(
        self,
        *,
        name: str | None = None,
        after: str | Iterable[str] = (),
        version: str = "1",
        max_attempts: int = 5,
        timeout: Duration | None = None,
        batch: int | None = None,
        isolate: Literal["process"] | None = None,
        backoff: Backoff | None = None,
        compatible_from: str | Iterable[str] = (),
        normalise: Callable[[Any], Any] | None = None,
        after_children: str | None = None,
    ) -> Callable[[Function], Function]:
        """Make a function a stage. It is called with the item and a context, in a thread, or on an event loop if async.

        `after` names the stages that must have passed before; `version` is the version of its code; `timeout` ends an
        attempt; `batch` hands over a list of items; `isolate="process"` runs it in a child process that may die;
        `compatible_from` names earlier versions whose results still stand; `normalise` is applied to a result before it
        is compared with the one it replaces; `after_children` names a pipeline whose items, submitted as children by
        this one's earlier stages, must have ended first.
        """

        def decorate(function: Function) -> Function:
            spec = StageSpec(
                name=name or str(getattr(function, "__name__", "")),
                handler=function,
                after=(after,) if isinstance(after, str) else tuple(after),
                version=version,
                max_attempts=max_attempts,
                timeout_seconds=None if timeout is None else seconds(timeout, what="timeout"),
                batch=batch,
                isolate=isolate,
                backoff=backoff or Backoff(),
                compatible_from=(compatible_from,) if isinstance(compatible_from, str) else tuple(compatible_from),
                normalise=normalise,
                after_children=after_children,
            )
            if spec.name in self._stages:
                raise DefinitionError(f"pipeline {self.name!r} has two stages named {spec.name!r}: rename one of them")
            self._stages[spec.name] = spec
            return function

        return decorate

    @property
    def spec(self) -> PipelineSpec:
        """The pipeline as a checked value: names, order, no cycle."""
        return PipelineSpec.build(self.name, self._stages.values())

    def add(self, items: Iterable[str | Mapping[str, Any]], *, merge: Merge = overwrite, priority: int = 0) -> Added:
        """Add items: keys, or mappings with a `key`. A key that is known is merged, not added again."""
        with self._app() as app:
            return app.add(self.name, items, merge=merge, priority=priority)

    def run(self, *, concurrency: int = 16, lease: Duration = 30, grace: Duration = 10, name: str = "") -> Summary:
        """Take every item through every stage, and return when nothing is left to do."""
        settings = Settings(
            concurrency=concurrency,
            lease_seconds=seconds(lease, what="lease"),
            grace_seconds=seconds(grace, what="grace"),
            name=name,
        )
        with self._app() as app:
            return app.run(settings)

    def _app(self) -> Holdfast:
        return Holdfast(self.store, [self.spec])
