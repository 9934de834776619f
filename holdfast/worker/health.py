"""The health of a worker: whether its threads make progress, and whether the store accepts its heartbeats."""

from __future__ import annotations

import time

from holdfast.telemetry.health import Health
from holdfast.worker.background.heartbeat import Heartbeat
from holdfast.worker.commit.who_commits import CommitTurns
from holdfast.worker.settings import Settings

#: A thread that has made no progress for so long hangs; or for so many leases, if that is longer.
STUCK_SECONDS = 60.0
STUCK_LEASES = 4


def health_of(
    committer: CommitTurns, heartbeat: Heartbeat, looked_at: float, settings: Settings, stopping: bool
) -> Health:
    """A database in trouble makes a worker unready, not dead: a new process could not reach it either."""
    now = time.monotonic()
    patience = max(STUCK_SECONDS, STUCK_LEASES * settings.lease_seconds) + settings.poll_seconds
    for thread, at in (("main thread", looked_at), ("committer", committer.progress_at)):
        if now - at > patience:
            return Health(False, False, f"the {thread} has made no progress for {now - at:.0f} s")
    if stopping:
        return Health(True, False, "the worker is stopping")
    if not heartbeat.trusted:
        return Health(True, False, "the store has accepted no heartbeat for a whole lease")
    return Health(True, True)
