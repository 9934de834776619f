"""Guards: checks the conditions of pipelines in the background, because a user's function may be slow.

A pipeline with guards is held back in this worker until they have been checked. A guard that raises or hangs holds the
pipeline back, and the reason says so.
"""

from __future__ import annotations

import importlib
import shutil
import threading
import time
from collections.abc import Callable, Collection
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from holdfast.model.faults import describe, storable
from holdfast.model.guards import Guards
from holdfast.model.logs import logger
from holdfast.runtime.services import Service

log = logger("holdfast.worker")

LOOK_SECONDS = 1.0
#: How long a result is valid.
STALE_SECONDS = 10.0


class GuardWatch(Service):
    """Which pipelines are held back here, and why. Each pipeline is checked in its own thread."""

    name = "guards"
    retry_seconds = LOOK_SECONDS

    def __init__(
        self,
        guards: Callable[[], dict[str, Guards]],
        on_change: Callable[[], None],
        on_held: Callable[[], None] = lambda: None,
        clock: Callable[[], datetime] = lambda: datetime.now(UTC),
        steady: Callable[[], float] = time.monotonic,
    ) -> None:
        self._guards = guards
        self._on_change = on_change
        #: Called when a different set of guards holds work back, but not when a guard only gives another reason.
        self._on_held = on_held
        self._held_by: dict[str, str] = {}
        self._clock = clock
        self._steady = steady
        #: By pipeline: the guards that were checked, when, and why they refused.
        self._verdicts: dict[str, tuple[Guards, float, dict[str, Any] | None]] = {}
        self._looks: dict[str, tuple[Guards, threading.Thread]] = {}
        self._held: dict[str, dict[str, Any]] = {}

    def held(self) -> Collection[str]:
        """The pipelines that are held back, including those whose guards have not been checked yet."""
        guarded = self._guards()
        return [name for name, guards in guarded.items() if self._why(name, guards) is not None] if guarded else ()

    def facts(self) -> list[dict[str, Any]]:
        """Which pipelines are held back and why, for the heartbeat."""
        guarded = self._guards()
        return [{"pipeline": name, **why} for name, guards in guarded.items() if (why := self._why(name, guards))]

    def one_pass(self) -> bool:
        """Check all pipelines without waiting for a slow one."""
        self.due = time.monotonic() + LOOK_SECONDS
        guarded = self._guards()
        for name in [name for name in self._verdicts if name not in guarded]:
            del self._verdicts[name]
        for name, guards in guarded.items():
            look = self._looks.get(name)
            if look is None or look[0] != guards or not look[1].is_alive():
                thread = threading.Thread(target=self._look, args=(name, guards), daemon=True)
                self._looks[name] = (guards, thread)
                thread.start()
        held = {name: why for name, guards in guarded.items() if (why := self._why(name, guards)) is not None}
        for name in held.keys() - self._held.keys():
            log.info("pipeline %s is held back: %s", name, held[name]["text"])
        if held != self._held:
            self._held = held
            self._changed()
        return False

    def _look(self, name: str, guards: Guards) -> None:
        try:
            why = _refusal(guards, self._clock())
        except BaseException as error:
            why = {"guard": "guards", "text": f"a guard raised {describe(error)[0]}"[:300], "until": None}
        if self._looks[name][0] != guards:
            return  # a late answer; the guards have changed meanwhile
        before = self._verdicts.get(name)
        self._verdicts[name] = (guards, self._steady(), why)
        if before is None or before[2] != why:
            self._changed()

    def _changed(self) -> None:
        self._on_change()
        held_by = {one["pipeline"]: one["guard"] for one in self.facts()}
        if held_by != self._held_by:
            self._held_by = held_by
            self._on_held()

    def _why(self, name: str, guards: Guards) -> dict[str, Any] | None:
        """Why it is held back according to the last check; None if it may run."""
        verdict = self._verdicts.get(name)
        if verdict is None or verdict[0] != guards:
            return {"guard": "guards", "text": "its guards have not been looked at yet", "until": None}
        since = self._steady() - verdict[1]
        if since > STALE_SECONDS:
            return {"guard": "guards", "text": f"a guard has not answered for {since:.0f} s", "until": None}
        return verdict[2]


def _refusal(guards: Guards, now: datetime) -> dict[str, Any] | None:
    """Why work may not start, and when it may again if that is known."""
    if guards.hours is not None and not guards.hours.contain(now):
        hours = guards.hours
        begins = hours.next_begin(now)
        text = f"it runs from {hours.begin:%H:%M} to {hours.end:%H:%M} ({hours.zone}) only"
        return {"guard": "hours", "text": text, "until": round(begins.timestamp() * 1e6)}
    for path in guards.exists:
        if not Path(path).exists():
            return {"guard": "exists", "text": f"{path} does not exist", "until": None}
    if guards.disk_free is not None:
        free = shutil.disk_usage(".").free
        if free < guards.disk_free:
            text = f"{free / 1e9:.1f} GB are free on the disk, {guards.disk_free / 1e9:.1f} GB are wanted"
            return {"guard": "disk_free", "text": text, "until": None}
    for path in guards.handlers:
        try:
            answer = _function(path)()
        except BaseException as error:
            return {"guard": path, "text": f"the guard {path} raised {describe(error)[0]}"[:300], "until": None}
        if answer is not True:
            said = answer if isinstance(answer, str) else f"the guard {path} says no"
            return {"guard": path, "text": storable(said, 300), "until": None}
    return None


def _function(path: str) -> Callable[[], Any]:
    module, _, name = path.replace(":", ".").rpartition(".")
    found: Callable[[], Any] = getattr(importlib.import_module(module), name)
    return found
