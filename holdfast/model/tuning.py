"""Tuning: what may change while workers run: limits of resources, of a pipeline and of its stages, and guards.

A pipeline is two values. Its spec (identity, stages, handlers) never changes; its tuning may change at any time. Tuning is kept
as it was written, so that it can be stored, compared and changed key by key. `Tuning.read` checks all of it.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec

from holdfast.errors import UsageError
from holdfast.model import guard_conditions as guarding
from holdfast.model.did_you_mean import there_are
from holdfast.model.guard_conditions import Guards
from holdfast.model.resource import KEYS, ResourceSpec


def merged(declared: Mapping[str, Any], tuned: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of the author, overridden by those of a person. Nested keys are overridden one by one."""
    together = dict(declared)
    for key, value in tuned.items():
        old = declared.get(key)
        together[key] = {**old, **value} if isinstance(value, Mapping) and isinstance(old, Mapping) else value
    return together


def read_value(text: str) -> Any:
    """A value as a person types it: numbers, true and false, lists and objects as JSON has them; everything else as it is. An
    empty text takes back what was set."""
    if not text:
        return None
    try:
        return msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError):
        return text


def own_resource(pipeline: str, stage: str | None = None) -> str:
    """The name of the resource that holds the limits of a pipeline, or of one of its stages. No other resource can have it."""
    return f"@{pipeline}" if stage is None else f"@{pipeline}/{stage}"


@dataclass(frozen=True, slots=True)
class Tuning:
    """Checked, and as it was written: limits by name of resource (see `own_resource`), and guards."""

    limits: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    guards: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def read(cls, pipeline: str, stages: Collection[str], given: Mapping[str, Any], *, where: str = "") -> Tuning:
        """Read the tuning of a pipeline: its own limits, `guards`, and under `stages` those of single stages.

        {"rate": "60/min", "guards": {"hours": "22:00-06:00"}, "stages": {"extract": {"concurrency": 2}}}
        """
        where = where or f"pipeline {pipeline!r}: tuning"
        if not isinstance(given, Mapping):
            raise UsageError(f"{where}: {given!r} is not a mapping")
        for key in given:
            if key not in (*KEYS, "guards", "stages"):
                raise UsageError(f"{where}: {key!r} is unknown; {there_are(key, (*KEYS, 'guards', 'stages'))}")
        limits: dict[str, Mapping[str, Any]] = {}
        own: Mapping[str, Any]
        if own := {key: value for key, value in given.items() if key in KEYS}:
            limits[own_resource(pipeline)] = own
        of_stages = given.get("stages") or {}
        if not isinstance(of_stages, Mapping):
            raise UsageError(f"{where}: stages: {of_stages!r} is not a mapping")
        for stage, own in of_stages.items():
            if stage not in stages:
                raise UsageError(f"{where}: stages: {stage!r} is unknown; {there_are(stage, stages)}")
            limits[own_resource(pipeline, stage)] = own
        for name, own in limits.items():
            stage = name.partition("/")[2]
            ResourceSpec.read(name, own, where=f"{where}: stages: {stage}" if stage else where)
        conditions = given.get("guards") or {}
        Guards.read(conditions, where=f"{where}: guards")
        return cls(limits, dict(conditions))


#: Every key that `tune` takes for a pipeline.
TUNABLE = (*KEYS, *guarding.KEYS)
