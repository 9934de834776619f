"""Arrow arrays made from their buffers, value by value.

`pyarrow.array` would do the same from a list, but it loads pandas wherever that is installed, which takes about 50 MB, and the
list holds Python objects, each several times as large as its value in a buffer.
"""

from __future__ import annotations

import sys
from array import array
from collections.abc import Callable
from importlib import import_module
from typing import Any, Protocol

from holdfast.export.columns import Kind

_THERE, _MISSING = b"10"


class Values(Protocol):
    """The values of a column on their way into an array."""

    def append(self, value: Any) -> None:
        """Take a value of the column's kind, or None."""

    def array(self, type: Any) -> Any:
        """An Arrow array of this type with all values so far; nothing may be appended afterwards."""


def values_of(kind: Kind) -> Values:
    """An empty column of this kind."""
    return _VALUES[kind]()


class _Texts:
    def __init__(self) -> None:
        self._there = bytearray()
        self._ends = array("i", [0])
        self._text = bytearray()

    def append(self, value: str | None) -> None:
        if value is None:
            self._there.append(_MISSING)
        else:
            self._there.append(_THERE)
            self._text += value.encode()
        self._ends.append(len(self._text))

    def array(self, type: Any) -> Any:
        return _array(type, self._there, self._ends, self._text)


class _Numbers:
    def __init__(self, code: str) -> None:
        self._there = bytearray()
        self._numbers: array[Any] = array(code)

    def append(self, value: float | None) -> None:
        if value is None:
            self._there.append(_MISSING)
            self._numbers.append(0)
        else:
            self._there.append(_THERE)
            self._numbers.append(value)

    def array(self, type: Any) -> Any:
        return _array(type, self._there, self._numbers)


class _Amounts:
    """Decimals of 128 bits: the number of their smallest units, which is what a store has."""

    def __init__(self) -> None:
        self._there = bytearray()
        self._units = bytearray()

    def append(self, value: int | None) -> None:
        self._there.append(_MISSING if value is None else _THERE)
        self._units += (value or 0).to_bytes(16, sys.byteorder, signed=True)

    def array(self, type: Any) -> Any:
        return _array(type, self._there, self._units)


class _Truths:
    def __init__(self) -> None:
        self._there = bytearray()
        self._true = bytearray()

    def append(self, value: bool | None) -> None:
        self._there.append(_MISSING if value is None else _THERE)
        self._true.append(_THERE if value else _MISSING)

    def array(self, type: Any) -> Any:
        return _array(type, self._there, _bits(self._true))


_VALUES: dict[Kind, Callable[[], Values]] = {
    Kind.TEXT: _Texts,
    Kind.JSON: _Texts,
    Kind.INT: lambda: _Numbers("q"),
    Kind.FLOAT: lambda: _Numbers("d"),
    Kind.BOOL: _Truths,
    Kind.MONEY: _Amounts,
    Kind.TIME: lambda: _Numbers("q"),
}


def _array(type: Any, there: bytearray, *contents: Any) -> Any:
    pa = import_module("pyarrow")
    buffers = [_bits(there) if _MISSING in there else None, *contents]
    return pa.Array.from_buffers(type, len(there), [one if one is None else pa.py_buffer(one) for one in buffers])


def _bits(digits: bytearray) -> bytes:
    """Eight digits to a byte, the first of them in the lowest bit."""
    return int(digits[::-1] or b"0", 2).to_bytes((len(digits) + 7) // 8, "little")
