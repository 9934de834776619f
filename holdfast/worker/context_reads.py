"""What handlers read of the store through their worker."""

from __future__ import annotations

import threading
from collections.abc import Mapping

from holdfast.engine.layout import layout
from holdfast.engine.resource_state import pause_of
from holdfast.errors import UsageError
from holdfast.model.layout import Layout
from holdfast.store import Store


class ContextReads:
    """The reading part of `Surroundings`, with a connection that the handlers of a worker share."""

    def __init__(self, reader: Store, known: Layout) -> None:
        self._reader = reader
        self._reading = threading.Lock()
        self._layout = known

    def read_result(self, pipeline: str, item: int, stage: str, known: Mapping[int, str]) -> str | None:
        row = self._layout.find(pipeline, stage)
        if row is None:
            raise UsageError(f"pipeline {pipeline!r} has no stage {stage!r}")
        if row.id in known:
            return known[row.id]
        with self._reading:
            found = self._reader.read(lambda tx: tx.run("read_result", item=item, stage=row.id))
        if not found or found[0][0] not in ("done", "skipped"):
            raise UsageError(f"stage {stage!r} has no result for this item yet: name it in after=")
        result: str | None = found[0][1]
        return result

    def count_children(self, item: int, pipeline: str) -> dict[str, int]:
        with self._reading:
            return dict(self._reader.read(lambda tx: tx.run("count_children", item=item, pipeline=pipeline)))

    def has_budget(self, stage: int, resource: str | None) -> bool:
        with self._reading:
            known = self._reader.read(layout)
        meant = known.resource(known.resource_of_call(known.stages[stage], resource))
        limits = [one for one in known.limits_of_its_own(stage) if one.spec.has_budget]
        return bool(limits) or (meant is not None and meant.spec.has_budget)

    def pause_of(self, resource: str) -> tuple[str, float] | None:
        with self._reading:
            return self._reader.read(lambda tx: pause_of(tx, resource))
