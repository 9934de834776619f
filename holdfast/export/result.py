"""One result: a finished stage of an item, with its value."""

from __future__ import annotations

from datetime import datetime
from decimal import Decimal
from typing import Any, Generic, TypeVar

import msgspec

from holdfast.answers.units import amount, instant
from holdfast.engine.results import ResultRow
from holdfast.errors import ValueMismatch
from holdfast.model import codec
from holdfast.model.stage import StageSpec

V = TypeVar("V")


def value_of(text: str | None) -> Any:
    """The value that a stored text stands for. Only here the JSON of a result, or of an item's data, becomes a value."""
    return None if text is None else codec.shown(text)


def _typed(spec: StageSpec, row: ResultRow) -> Any:
    """The result as an instance of its declared type."""
    try:
        return spec.value_of(row.result)
    except ValueMismatch as error:
        raise ValueMismatch(
            f"item {row.key!r}, stage {spec.name!r}: {error}; its type has changed since: `holdfast plan` lists such results"
        ) from None


class Result(msgspec.Struct, Generic[V], frozen=True):
    """How a stage of an item ended, and what it returned."""

    pipeline: str
    key: str
    stage: str
    state: str
    #: What the handler returned: an instance, if this program declares a type for it.
    result: V
    #: The item's data, as it is now.
    data: Any
    error: str | None
    cost: Decimal
    version: str | None
    attempts: int
    started_at: datetime | None
    finished_at: datetime

    @classmethod
    def of(cls, row: ResultRow, pipeline: str, stage: str, spec: StageSpec | None = None) -> Result[Any]:
        return Result(
            pipeline=pipeline,
            key=row.key,
            stage=stage,
            state=row.state,
            result=value_of(row.result) if spec is None else _typed(spec, row),
            data=value_of(row.data),
            error=row.error,
            cost=amount(row.cost),
            version=row.version,
            attempts=row.attempts,
            started_at=instant(row.started_at),
            finished_at=instant(row.ended_at),
        )
