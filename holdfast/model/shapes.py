"""Shapes: what the JSON columns of our tables hold. Whoever reads such a column asks for its shape; a text of another one
counts as unreadable, and `db check` names it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, NotRequired, TypedDict

import msgspec

from holdfast.model.attempt_counts import AttemptCounts
from holdfast.model.declared_reads import Readings
from holdfast.model.found_items import LookCounts

#: A count, or the number of a row, as columns can hold it.
Number = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]


class Progress(TypedDict):
    """What a handler last reported about an item."""

    item: str
    stage: str
    done: int | float
    total: int | float | None
    note: str


class HeldBack(TypedDict):
    """A guard that keeps a worker from beginning work of a pipeline."""

    pipeline: str
    guard: str
    text: str
    since: NotRequired[Number | None]
    until: Number | None


class LastError(TypedDict):
    """The newest failure of an attempt."""

    at: Number
    stage: str
    item: str
    error: str


class WorkerFacts(TypedDict, total=False):
    """What a worker says of itself with each heartbeat."""

    in_hand: Number
    done: dict[str, Number]
    progress: list[Progress]
    holdfast: str
    last_error: LastError
    guards: list[HeldBack]


class Look(msgspec.Struct):
    """How far a look at a source has come."""

    ended: bool
    counts: LookCounts


class Memory(TypedDict):
    """What a source remembers, and the definition that it belongs to."""

    of: str
    kept: dict[str, Any]


class Notice(TypedDict):
    """What is delivered: an alert, in one way."""

    by: str
    text: str
    count: Number


VERSIONS = dict[int, str]
NUMBERS = list[Number]
COUNTS = dict[str, Number]

#: By table and column, in the order in which `store/sql/strays.sql` reads them.
LARGE: Mapping[str, Mapping[str, Any]] = {
    "items": {"data": dict},
    "outcomes": {"result": object, "previous": object},
    "calls": {"facts": dict, "value": object},
    "events": {"data": dict},
    "chains": {"led_by": NUMBERS},
}
SMALL: Mapping[str, Mapping[str, Any]] = {
    "workers": {"stages": NUMBERS, "versions": VERSIONS, "facts": WorkerFacts},
    "stages": {
        "after": list[str],
        "compatible": list[str],
        "resources": list[str],
        "formerly": list[str],
        "readings": Readings,
    },
    "pipelines": {"guards": dict, "tuned": dict, "provenance": list[str]},
    "resources": {"spec": dict, "tuned": dict},
    "minutes": {"counts": AttemptCounts},
    "actions": {"filter": dict, "place": dict, "preview": dict, "counts": COUNTS},
    "sources": {"memory": Memory, "found": Look},
    "deliveries": {"body": Notice},
}
