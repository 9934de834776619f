"""Background services of a worker: looking for items in sources, and alerts."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Collection, Mapping, Sequence
from functools import partial
from typing import Any

from holdfast.app import Holdfast
from holdfast.engine import discover
from holdfast.engine.add import Merge
from holdfast.engine.workers import Identity
from holdfast.model.alert import AlertRule
from holdfast.runtime import process_identity as machine
from holdfast.sources import Discoverer, SourceSpec
from holdfast.store.store import new_identity
from holdfast.worker.background.alerts import FAREWELL_SECONDS, PATIENCE_SECONDS, Alerts
from holdfast.worker.background.companion import Around, Companion, Passes
from holdfast.worker.background.heartbeat import Heartbeat

#: By pipeline.
Sources = Mapping[str, Sequence[SourceSpec]]

LOOK_SECONDS = 1.0
LEASE_US = 30_000_000


def discovering(sources: Sources, merges: Mapping[str, Merge]) -> Companion:
    """A service that looks at sources when they are due."""

    def begin(around: Around) -> Passes:
        known: dict[int, Discoverer] = {}

        def one_pass() -> bool:
            worker = around.worker()
            if worker not in known:
                # A worker that was declared dead goes on under another number.
                known.clear()
                write = partial(around.store.write, slot=worker)
                known[worker] = Discoverer(
                    write, around.store.read, worker, sources, merges=merges, stop=around.stopped
                )
                known[worker].register()
            return bool(known[worker].one_pass())

        return Passes(one_pass)

    return Companion("sources", LOOK_SECONDS, begin)


def alerting(rules: Sequence[AlertRule], interval_seconds: float = LOOK_SECONDS) -> Companion:
    """A service that matches events with alert rules, and notifies."""

    def begin(around: Around) -> Passes:
        service = Alerts(around.store, rules, around.worker)

        def one_pass() -> bool:
            service.one_pass()
            return False

        return Passes(one_pass, service.last_pass)

    return Companion("alerts", interval_seconds, begin, FAREWELL_SECONDS + 2 * PATIENCE_SECONDS)


def discover_now(
    app: Holdfast, sources: Sources, merges: Mapping[str, Merge], names: Collection[str] | None = None
) -> list[dict[str, Any]]:
    """Look at these sources now (all, if none are named), and return their state afterwards. If another worker is looking
    already, that look counts."""
    app.register()
    store = app.store.another()
    writer = app.store.another()
    pulse = Heartbeat(
        store,
        _identity,
        {},
        lambda: {"done": {}},
        wants_news=lambda: False,
        on_news=lambda stages: None,
        on_lost=lambda: None,
        on_broken=lambda error: None,
    )
    pulse.start()
    try:
        worker = pulse.identity.id
        looker = Discoverer(
            partial(writer.write, slot=worker), writer.read, worker, sources, merges=merges, stop=threading.Event()
        )
        looker.register()
        for pipeline, specs in sources.items():
            chosen = [spec.name for spec in specs if names is None or spec.name in names]
            if chosen:
                writer.write(partial(discover.call_sources, pipeline=pipeline, names=chosen))
        looker.one_pass()
        told = writer.read(discover.sources)
        return [one for one in told if one["pipeline"] in sources and (names is None or one["source"] in names)]
    finally:
        pulse.stop()
        pulse.leave()
        pulse.close()
        writer.close()


def _identity() -> Identity:
    name = f"{socket.gethostname()}-{os.getpid()}-discover"
    return Identity(new_identity(), name, machine.this_host(), machine.this_process(), LEASE_US)
