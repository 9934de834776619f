"""Reads answers from what the engine finds: microseconds become datetimes and timedeltas, millionths become Decimals."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import date, datetime, timedelta
from decimal import Decimal
from functools import lru_cache, partial
from types import NoneType, UnionType
from typing import Any, TypeVar, get_args, get_origin, get_type_hints

from holdfast.answers.units import amount, day, instant, length

T = TypeVar("T")

_UNITS: Mapping[Any, Callable[[Any], Any]] = {datetime: instant, date: day, Decimal: amount}


def read(kind: type[T], facts: Mapping[str, Any], /, **given: Any) -> T:
    """An answer of this class: each attribute is made from the fact of its name, as its type says. What is `given` is taken
    as it is. A fact may be missing if the attribute may be None."""
    readers = _readers(kind)  # type: ignore[arg-type]
    return kind(**{name: given[name] if name in given else one(facts) for name, one in readers.items()})


@lru_cache
def _readers(kind: Any) -> dict[str, Callable[[Mapping[str, Any]], Any]]:
    hints = get_type_hints(kind)
    return {name: _reader(name, hints[name]) for name in kind.__struct_fields__}


def _reader(name: str, hint: Any) -> Callable[[Mapping[str, Any]], Any]:
    if timedelta in (hint, *get_args(hint)):
        return partial(_length, name)
    optional = hint is Any or NoneType in get_args(hint)
    convert = _converter(hint)

    def from_facts(facts: Mapping[str, Any]) -> Any:
        value = facts.get(name) if optional else facts[name]
        return value if value is None or convert is None else convert(value)

    return from_facts


def _converter(hint: Any) -> Callable[[Any], Any] | None:
    if isinstance(hint, UnionType):
        [hint] = [one for one in get_args(hint) if one is not NoneType]
    if get_origin(hint) is tuple:
        each = _converter(get_args(hint)[0])
        return tuple if each is None else lambda found: tuple(map(each, found))
    # Answers within answers read themselves.
    return _UNITS.get(hint) or getattr(hint, "of", None)


def _length(name: str, facts: Mapping[str, Any]) -> timedelta | None:
    """A length of time is a fact in seconds, or in microseconds."""
    seconds = facts.get(f"{name}_seconds")
    return length(facts.get(f"{name}_us")) if seconds is None else timedelta(seconds=seconds)
