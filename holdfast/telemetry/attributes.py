"""What spans and log records say about an attempt, under the same names."""

from __future__ import annotations

from collections.abc import Mapping

from holdfast.model.redact import redact

#: Values that spans and log records can hold.
Attributes = Mapping[str, str | int | float]

BATCH_SIZE = "messaging.batch.message_count"


def of_stage(pipeline: str, stage: str, version: str, worker: str) -> dict[str, str | int | float]:
    """The same for all attempts of a stage in one worker."""
    return {
        "holdfast.pipeline": pipeline,
        "holdfast.stage": stage,
        "holdfast.version": version,
        "holdfast.worker": worker,
    }


def of_attempt(key: str, attempt: int, lease: int) -> dict[str, str | int | float]:
    return {"holdfast.item.key": redact(key), "holdfast.attempt": attempt, "holdfast.lease": lease}
