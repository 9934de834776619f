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

from holdfast.model.error_fingerprint import describe, storable
from holdfast.model.guard_conditions import Guards
from holdfast.model.log_lines import logger
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
    ) -> None:
        self._guards = guards
        self._on_change = on_change
        #: Called when a different set of guards holds work back, but not when a guard only gives another reason.
        self._on_held = on_held
        self._held_by: dict[str, str] = {}
        self._clock = clock
        #: By pipeline: the guards that were checked, when, and why they refused.
        self._verdicts: dict[str, tuple[Guards, float, dict[str, Any] | None]] = {}
        self._looks: dict[str, tuple[Guards, threading.Thread]] = {}
        self._held: dict[str, dict[str, Any]] = {}
        #: Since when they are held back, in microseconds.
        self._since: dict[str, int] = {}

    def held(self) -> Collection[str]:
        """The pipelines that are held back, including those whose guards have not been checked yet."""
        return self._refusals().keys()

    def facts(self) -> list[dict[str, Any]]:
        """Which pipelines are held back and why, for the heartbeat."""
        return [{"pipeline": name, "since": self._since.get(name), **why} for name, why in self._refusals().items()]

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
        held = self._refusals()
        now = round(self._clock().timestamp() * 1e6)
        self._since = {name: self._since.get(name, now) for name in held}
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
            why = _because("guards", f"a guard raised {describe(error)[0]}")
        if self._looks[name][0] != guards:
            return  # a late answer; the guards have changed meanwhile
        before = self._verdicts.get(name)
        self._verdicts[name] = (guards, time.monotonic(), why)
        if before is None or before[2] != why:
            self._changed()

    def _changed(self) -> None:
        self._on_change()
        held_by = {one["pipeline"]: one["guard"] for one in self.facts()}
        if held_by != self._held_by:
            self._held_by = held_by
            self._on_held()

    def _refusals(self) -> dict[str, dict[str, Any]]:
        """Why pipelines are held back according to the last checks."""
        whys = {name: self._why(name, guards) for name, guards in self._guards().items()}
        return {name: why for name, why in whys.items() if why is not None}

    def _why(self, name: str, guards: Guards) -> dict[str, Any] | None:
        checked, at, why = self._verdicts.get(name, (None, 0.0, None))
        if checked != guards:
            return _because("guards", "its guards have not been looked at yet")
        if (since := time.monotonic() - at) > STALE_SECONDS:
            return _because("guards", f"a guard has not answered for {since:.0f} s")
        return why


def _because(guard: str, text: str, until: int | None = None) -> dict[str, Any]:
    """Why a guard refuses, and when it will allow work again if that is known."""
    return {"guard": guard, "text": text[:300], "until": until}


def _refusal(guards: Guards, now: datetime) -> dict[str, Any] | None:
    """Why work may not start; None if it may."""
    if guards.hours is not None and not guards.hours.contain(now):
        hours = guards.hours
        text = f"it runs from {hours.begin:%H:%M} to {hours.end:%H:%M} ({hours.zone}) only"
        return _because("hours", text, round(hours.next_begin(now).timestamp() * 1e6))
    for path in guards.exists:
        if not Path(path).exists():
            return _because("exists", f"{path} does not exist")
    if guards.disk_free is not None:
        free = shutil.disk_usage(".").free
        if free < guards.disk_free:
            wanted = guards.disk_free / 1e9
            return _because("disk_free", f"{free / 1e9:.1f} GB are free on the disk, {wanted:.1f} GB are wanted")
    for path in guards.handlers:
        try:
            answer = _function(path)()
        except BaseException as error:
            return _because(path, f"the guard {path} raised {describe(error)[0]}")
        if answer is not True:
            said = answer if isinstance(answer, str) else f"the guard {path} says no"
            return _because(path, storable(said, 300))
    return None


def _function(path: str) -> Callable[[], Any]:
    module, _, name = path.replace(":", ".").rpartition(".")
    found: Callable[[], Any] = getattr(importlib.import_module(module), name)
    return found
