"""The JSON form of a value, made of text, numbers, lists and objects.

Types are recognised by what their class offers, so nothing is imported for them. What has no faithful form is refused
with its type and its place.
"""

from __future__ import annotations

import dataclasses
import datetime
import math
from collections.abc import Container, Iterable, Mapping
from decimal import Decimal
from enum import Enum
from pathlib import PurePath
from typing import Any
from uuid import UUID

import msgspec

from holdfast.errors import ValueRefused

#: How deeply lists and objects may be nested.
MAX_DEPTH = 100
#: How many times in a row a form may need another form.
_MOST_STEPS = 10
#: Python refuses to convert longer ones to text.
_MOST_BITS = 4096

#: The real name, whatever the class says about it.
_name = type.__dict__["__name__"].__get__


class _Unfit(Exception):
    """A part that has no JSON form. Its path is added from the inside out."""

    def __init__(self, what: str, advice: str = "") -> None:
        self.what = what
        self.advice = advice
        self.path: list[str] = []

    def __str__(self) -> str:
        place = "".join(reversed(self.path)).removeprefix(".")
        place = f" at {place[:200]}" if self.path else ""
        return f"{self.what}{place}{self.advice}"


def json_form(value: Any, limit: int) -> Any:
    """The value made of nothing but plain text, numbers, booleans, None, lists and objects; a copy.

    ValueRefused if a part has no such form, or if the keys and the number of parts alone take more than `limit` bytes.
    """
    try:
        return _form(value, [limit], 0, 0)
    except _Unfit as unfit:
        raise ValueRefused(str(unfit)) from None
    except RecursionError:
        raise ValueRefused(f"nested deeper than {MAX_DEPTH} levels") from None
    except Exception as error:
        raise ValueRefused(f"a value of type {_name(type(value))} that cannot be read: {_said(error)}") from None


def _form(part: Any, room: list[int], depth: int, steps: int) -> Any:
    """`steps` is how many forms in a row needed another; `room` is what is left of the limit."""
    if depth > MAX_DEPTH:
        raise _Unfit(f"nested deeper than {MAX_DEPTH} levels")
    kind = type(part)
    if kind is str:
        return _text(part)
    if part is None or kind is bool:
        return part
    if kind is int:
        return _integer(part)
    if kind is float:
        return _number(part)
    if kind is dict:
        return _object(part.items(), room, depth)
    if kind is list:
        return _list(part, room, depth)
    return _form_of_other(part, kind, room, depth, steps)


def _form_of_other(part: Any, kind: type, room: list[int], depth: int, steps: int) -> Any:
    """The real class decides, since an object may claim another one; and methods of the base class read it, since a subclass
    may override them."""
    if steps > _MOST_STEPS:
        raise _Unfit(f"a value of type {_name(kind)}", ", whose JSON form is never plain")
    # First, since a member may also be a text or a number.
    if issubclass(kind, Enum):
        return _form(part._value_, room, depth, steps + 1)
    if issubclass(kind, str):
        return _text(str.__str__(part))
    if issubclass(kind, int):
        return _integer(int.__int__(part))
    if issubclass(kind, float):
        return _number(float.__float__(part))
    if issubclass(kind, dict):
        return _object(dict.items(part), room, depth)
    if issubclass(kind, list):
        return _list(list.__iter__(part), room, depth)
    if issubclass(kind, tuple):
        return _list(tuple.__iter__(part), room, depth)
    if issubclass(kind, Mapping):
        return _object(_pairs(part), room, depth)
    try:
        if issubclass(kind, msgspec.Struct):
            # msgspec calls the hook for parts that it does not know.
            own = msgspec.to_builtins(part, str_keys=True, enc_hook=lambda inner: _form(inner, room, depth, steps + 1))
        else:
            own = _own_form(part, kind)
    except _Unfit:
        raise
    except Exception as error:
        raise _Unfit(
            f"a value of type {_name(kind)}", f", whose JSON form cannot be produced: {_said(error)}"
        ) from None
    return _form(own, room, depth, steps + 1)


def _list(parts: Iterable[Any], room: list[int], depth: int) -> list[Any]:
    made: list[Any] = []
    try:
        for part in parts:
            _take_room(room, 2)
            made.append(_form(part, room, depth + 1, 0))
    except _Unfit as unfit:
        unfit.path.append(f"[{len(made)}]")
        raise
    return made


def _object(parts: Iterable[tuple[Any, Any]], room: list[int], depth: int) -> dict[str, Any]:
    made: dict[str, Any] = {}
    name = None
    try:
        for key, part in parts:
            name = None
            name = _key(key, made)
            _take_room(room, len(name) + 5)
            made[name] = _form(part, room, depth + 1, 0)
    except _Unfit as unfit:
        if name is not None:
            unfit.path.append(f".{name}")
        raise
    except RecursionError:
        raise
    except Exception as error:
        # A mapping that fails when read, or an object that another thread changes.
        raise _Unfit(f"an object that cannot be read: {_said(error)}") from None
    return made


def _pairs(mapping: Mapping[Any, Any]) -> Iterable[tuple[Any, Any]]:
    yield from mapping.items()


def _key(key: Any, others: Container[str]) -> str:
    kind = type(key)
    text = key._value_ if issubclass(kind, Enum) else key
    if not issubclass(type(text), str):
        raise _Unfit(f"an object key of type {_name(kind)}", ": keys are text")
    try:
        text = _text(str.__str__(text))
    except _Unfit as unfit:
        raise _Unfit(f"{unfit.what} at a key") from None
    if text in others:
        raise _Unfit(f"the key {text[:60]!r} twice")
    return text


def _text(text: str) -> str:
    if "\0" in text:
        raise _Unfit("a text with a NUL character")
    if not text.isascii():
        try:
            text.encode()
        except UnicodeEncodeError:
            raise _Unfit("a text with a lone surrogate") from None
    return text


def _integer(number: int) -> int:
    if number.bit_length() > _MOST_BITS:
        raise _Unfit(f"an integer of {number.bit_length():,} bits", ": send it as text")
    return number


def _number(number: float) -> float:
    if not math.isfinite(number):
        raise _Unfit(f"the number {number!r}", ", which JSON does not have")
    return number


def _take_room(room: list[int], size: int) -> None:
    room[0] -= size
    if room[0] < 0:
        raise _Unfit("more parts than fit into the limit", ": store it elsewhere (ctx.keep), return its address")


def _own_form(part: Any, kind: Any) -> Any:
    """The form that a value offers itself, which may need a form in turn."""
    if issubclass(kind, (Decimal, datetime.date, datetime.time, datetime.timedelta)):
        return _quantity(part)
    if issubclass(kind, (UUID, PurePath)):
        return str(part)
    if hasattr(kind, "__await__"):
        raise _Unfit(f"a {_name(kind)}", ": the call was not awaited")
    if hasattr(kind, "__anext__"):
        raise _Unfit(f"a value of type {_name(kind)}", ": it was not read with `async for`")
    if hasattr(kind, "model_dump"):
        return part.model_dump(mode="json")
    if hasattr(kind, "__fields__") and hasattr(kind, "dict"):
        # The JSON of pydantic 1 has floats for decimal numbers.
        return part.dict()
    if hasattr(kind, "__dataclass_fields__"):
        return {field.name: getattr(part, field.name) for field in dataclasses.fields(kind)}
    if hasattr(kind, "__attrs_attrs__"):
        return {field.name: getattr(part, field.name) for field in kind.__attrs_attrs__}
    if hasattr(kind, "dtype") and hasattr(kind, "shape") and hasattr(kind, "item"):
        return _scalar(part, kind)
    raise _Unfit(f"a value of type {_name(kind)}", _instead(kind))


def _quantity(part: Any) -> str | float:
    if part != part or (isinstance(part, Decimal) and not part.is_finite()):
        raise _Unfit(f"the value {part}", ", which JSON does not have")
    if isinstance(part, Decimal):
        return str(part)
    if isinstance(part, datetime.timedelta):
        seconds = part.total_seconds()
        if datetime.timedelta(seconds=seconds) != part:
            raise _Unfit(f"the length of time {part}", ", which is not exact in seconds: give text")
        return seconds
    return str(part.isoformat())


def _scalar(part: Any, kind: type) -> Any:
    """A number, boolean, text or time of numpy, or of a similar library."""
    if tuple(part.shape):
        raise _Unfit(f"a value of type {_name(kind)} with {len(part.shape)} dimensions", ": give its .tolist()")
    sort = getattr(part.dtype, "kind", "")
    # A datetime64 of nanoseconds would become a bare number.
    own = str(part) if sort == "M" else part.item()
    if own == "NaT" or hasattr(kind, "mask") or (sort == "m" and not isinstance(own, datetime.timedelta)):
        raise _Unfit(f"a value of type {_name(kind)}", _instead(kind))
    return own


def _instead(kind: type) -> str:
    if issubclass(kind, (set, frozenset)):
        return ": give a list"
    if issubclass(kind, (bytes, bytearray, memoryview)):
        return ": store it elsewhere (ctx.keep) and give its address, or base64 text"
    return ": give text, a number, a list or an object"


def _said(error: Exception) -> str:
    try:
        return f"{_name(type(error))}: {error}"[:200]
    except Exception:
        return str(_name(type(error)))
