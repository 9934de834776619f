"""The settings of a worker, as programs and the command line give them."""

from __future__ import annotations

from dataclasses import dataclass

from holdfast.engine.prune import EVENTS_KEPT_DAYS
from holdfast.errors import UsageError


@dataclass(frozen=True, slots=True)
class Settings:
    """The settings of a worker."""

    concurrency: int = 16
    lease_seconds: float = 30.0
    grace_seconds: float = 10.0
    poll_seconds: float = 1.0
    name: str = ""
    #: How long events are kept.
    keep_events_days: float = EVENTS_KEPT_DAYS
    #: Offer only these stages, named `stage` or `pipeline/stage`.
    stages: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.concurrency < 1:
            raise UsageError(f"concurrency {self.concurrency}: at least one handler must run")
        if self.lease_seconds < 0.2:
            raise UsageError(
                f"lease {self.lease_seconds} s: it must be 0.2 s or longer, to leave time for three heartbeats"
            )
        if self.grace_seconds < 0 or self.poll_seconds <= 0:
            raise UsageError("grace must be zero or more, and poll longer than zero")
