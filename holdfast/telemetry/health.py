"""Health: whether a process gets on, and whether it can work now."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import NamedTuple

from holdfast.model.log_lines import logger

log = logger("holdfast.telemetry")

#: How often a heartbeat file is touched, and complained about, at most.
TOUCH_SECONDS = 1.0
COMPLAIN_SECONDS = 60.0


class Health(NamedTuple):
    """Live: its loop makes progress, and only a new process could help if it did not. Ready: it may start and commit work."""

    live: bool
    ready: bool
    #: Why it is not, for people.
    reason: str = ""


class HeartbeatFile:
    """A file whose modification time says when the process was last known to be live."""

    def __init__(self, path: str | Path) -> None:
        self._path = Path(path)
        self._touched_at = self._complained_at = -COMPLAIN_SECONDS

    def touch(self, health: Health) -> None:
        """Touch the file if the process is live. A disk that cannot be written to must not stop the work."""
        now = time.monotonic()
        if not health.live or now - self._touched_at < TOUCH_SECONDS:
            return
        self._touched_at = now
        try:
            descriptor = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o644)
            try:
                os.utime(descriptor)
            finally:
                os.close(descriptor)
        except OSError as error:
            if now - self._complained_at >= COMPLAIN_SECONDS:
                self._complained_at = now
                log.warning("the heartbeat file cannot be written: %s", error)

    def remove(self) -> None:
        """The process ends in good order."""
        try:
            self._path.unlink(missing_ok=True)
        except OSError as error:
            log.warning("the heartbeat file cannot be removed: %s", error)
