"""A scheduler: a table, what is done for each of its rows, and how. All five are run by the one loop of holdfast."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import sqlalchemy as sa

from examples.curation.settings import Settings
from holdfast import Backoff
from holdfast.adopt import Job, TableMapping


@dataclass(frozen=True)
class Scheduler:
    """What is its own; the rest of the loop's settings are those of the service."""

    name: str
    mapping: TableMapping
    handler: Callable[[Job], Any]
    #: Whether its handler awaits, and wants an async engine; the others run in threads.
    is_async: bool
    own: Mapping[str, Any] = field(default_factory=dict)

    def settings(self, settings: Settings) -> dict[str, Any]:
        """All that `Loop` and `run_job_loop` take."""
        return {
            # With the process: whoever looks at a row sees who holds it.
            "name": f"{self.name} {os.getpid()}",
            "batch": settings.batch,
            "concurrency": settings.concurrency,
            "poll": settings.poll,
            "max_instances": settings.max_instances or None,
            "retry": Backoff(first_seconds=settings.first_pause, most_seconds=60.0),
            "stale_after": settings.stale,
            "grace": settings.grace,
            "report": settings.report,
            "guarded": settings.guarded,
            **self.own,
        }

    @property
    def status(self) -> sa.Column[Any]:
        return self.mapping.columns["status"]
