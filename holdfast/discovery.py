"""Look for items in sources: beside a worker, when they are due, or now."""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import partial

from holdfast.answers.source import SourceList
from holdfast.app import Holdfast
from holdfast.engine import poll_sources
from holdfast.engine.add import Merge
from holdfast.engine.workers import Identity
from holdfast.model.stage import PipelineSpec
from holdfast.model.typed import ValueType
from holdfast.runtime import process_identity as machine
from holdfast.runtime.services import MakeService, Service, ServiceContext, ServiceThread
from holdfast.sources import Discoverer, SourceSpec
from holdfast.store.store import new_identity
from holdfast.worker.background.heartbeat import Heartbeat

#: By pipeline.
Sources = Mapping[str, Sequence[SourceSpec]]

LOOK_SECONDS = 1.0
LEASE_US = 30_000_000


class Discovery(Service):
    """Looks at sources when they are due."""

    name = "sources"
    retry_seconds = 10.0

    def __init__(
        self, context: ServiceContext, sources: Sources, merges: Mapping[str, Merge], types: Mapping[str, ValueType]
    ) -> None:
        self._context = context
        self._sources = sources
        self._merges = merges
        self._types = types
        #: A worker that was declared dead goes on under another number, with another discoverer.
        self._made: tuple[int, Discoverer] | None = None

    def one_pass(self) -> bool:
        self.due = time.monotonic() + LOOK_SECONDS
        return bool(self._discoverer().one_pass())

    def end(self) -> None:
        self._context.store.close()

    def _discoverer(self) -> Discoverer:
        store, worker = self._context.store, self._context.worker()
        if self._made is None or self._made[0] != worker:
            write = partial(store.write, slot=worker)
            made = Discoverer(
                write,
                store.read,
                worker,
                self._sources,
                merges=self._merges,
                types=self._types,
                stop=self._context.stopped,
            )
            made.register()
            self._made = (worker, made)
        return self._made[1]


def discovering(sources: Sources, merges: Mapping[str, Merge], pipelines: Iterable[PipelineSpec]) -> MakeService:
    """A service that looks at the sources of these pipelines when they are due."""
    types = _types(pipelines)
    return lambda context: Discovery(context, sources, merges, types)


def _types(pipelines: Iterable[PipelineSpec]) -> dict[str, ValueType]:
    """The types of the data of items, by pipeline."""
    return {spec.name: spec.data_type for spec in pipelines if spec.data_type is not None}


def discover_now(
    app: Holdfast, sources: Sources, merges: Mapping[str, Merge], names: Collection[str] | None = None
) -> SourceList:
    """Look at these sources now (all, if none are named), and return their state afterwards. If another worker is looking
    already, that look counts."""
    app.register()
    writer = app.store.another()
    heartbeat = Heartbeat(app.store.another(), _identity, {}, lambda: {"done": {}})
    thread = ServiceThread([heartbeat])
    try:
        heartbeat.join()
        thread.start()
        worker = heartbeat.identity.id
        looker = Discoverer(
            partial(writer.write, slot=worker),
            writer.read,
            worker,
            sources,
            merges=merges,
            types=_types(app.pipelines),
            stop=threading.Event(),
        )
        looker.register()
        for pipeline, specs in sources.items():
            chosen = [spec.name for spec in specs if names is None or spec.name in names]
            if chosen:
                writer.write(partial(poll_sources.call_sources, pipeline=pipeline, names=chosen))
        looker.one_pass()
        found = SourceList.of(writer.read(poll_sources.sources))
        return SourceList(one for one in found if one.pipeline in sources and (names is None or one.source in names))
    finally:
        thread.finish()
        thread.join()
        writer.close()


def _identity() -> Identity:
    name = f"{socket.gethostname()}-{os.getpid()}-discover"
    return Identity(new_identity(), name, machine.this_host(), machine.this_process(), LEASE_US)
