"""The one JSON form of answers, as docs/reference/json.md describes it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from datetime import date, datetime, timedelta
from decimal import Decimal
from enum import Enum
from functools import lru_cache
from typing import Any, cast, get_args, get_type_hints

from holdfast.answers.text_tables import exact, iso


def json_of(value: Any) -> Any:
    """An answer, or a part of one, as text, numbers, booleans, None, lists and objects.

    Instants are ISO 8601 in UTC, amounts of money are decimal text, and lengths of time are seconds under a name that ends in
    `_seconds`.
    """
    if value is None or isinstance(value, (bool, float)):
        return value
    if isinstance(value, Enum):
        return json_of(value.value)
    if isinstance(value, (str, int)):
        return value
    if isinstance(value, datetime):
        return iso(value)
    if isinstance(value, date):
        return value.isoformat()
    if isinstance(value, Decimal):
        return exact(value)
    if hasattr(value, "__struct_fields__") or is_dataclass(value):
        return {name: _seconds_or_json(getattr(value, of)) for of, name in json_names(cast(Any, type(value))).items()}
    if isinstance(value, Mapping):
        return {
            f"{key}_seconds" if isinstance(one, timedelta) else key: _seconds_or_json(one) for key, one in value.items()
        }
    if isinstance(value, (tuple, list)):
        return [json_of(one) for one in value]
    raise TypeError(f"{type(value).__name__} has no JSON form in an answer")


@lru_cache
def json_names(answer: Any) -> dict[str, str]:
    """What the attributes of a class of answers are called in JSON: as they are, and lengths of time with their unit."""
    hints = get_type_hints(answer)
    names = answer.__struct_fields__ if hasattr(answer, "__struct_fields__") else [one.name for one in fields(answer)]
    return {name: f"{name}_seconds" if timedelta in (hints[name], *get_args(hints[name])) else name for name in names}


def _seconds_or_json(value: Any) -> Any:
    return value.total_seconds() if isinstance(value, timedelta) else json_of(value)
