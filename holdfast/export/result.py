"""One result: a finished stage of an item, with its value."""

from __future__ import annotations

from datetime import datetime
from decimal import Decimal
from typing import Any

import msgspec

from holdfast.answers.units import amount, instant
from holdfast.engine.results import ResultRow
from holdfast.model import codec


def value_of(text: str | None) -> Any:
    """The value that a stored text stands for. Only here the JSON of a result, or of an item's data, becomes a value."""
    return None if text is None else codec.shown(text)


class Result(msgspec.Struct, frozen=True):
    """How a stage of an item ended, and what it returned."""

    pipeline: str
    key: str
    stage: str
    state: str
    #: What the handler returned.
    result: Any
    #: The item's data, as it is now.
    data: Any
    error: str | None
    cost: Decimal
    version: str | None
    attempts: int
    started_at: datetime | None
    finished_at: datetime

    @classmethod
    def of(cls, row: ResultRow, pipeline: str, stage: str) -> Result:
        return cls(
            pipeline=pipeline,
            key=row.key,
            stage=stage,
            state=row.state,
            result=value_of(row.result),
            data=value_of(row.data),
            error=row.error,
            cost=amount(row.cost),
            version=row.version,
            attempts=row.attempts,
            started_at=instant(row.started_at),
            finished_at=instant(row.ended_at),
        )
