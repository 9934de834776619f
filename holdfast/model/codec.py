"""The one JSON encoder: a value comes back from the database as it went in, or it is refused.

The test is the round trip itself: what decodes to something else (a tuple to a list, NaN to null, a datetime to text)
is refused with its type and its place. Texts are stored as JSON with keys in the order given; hashes are taken over
the form with sorted keys, so that order alone never makes two values differ.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from typing import Any

import msgspec

from holdfast.errors import ValueRefused

#: What one payload or result may weigh as JSON.
MAX_BYTES = 16 * 1024 * 1024
#: How deep lists and objects may lie in one another.
MAX_DEPTH = 100
#: Anything with more parts, or characters, is looked at before it is written out.
WIDE = 1000

_encode = msgspec.json.Encoder().encode
_encode_sorted = msgspec.json.Encoder(order="sorted").encode
_decode = msgspec.json.Decoder().decode
#: Copied for every hash: to set one up costs as much as to fill it.
_new_hash = hashlib.blake2b(digest_size=16).copy


def encode(value: Any, *, limit: int = MAX_BYTES) -> str:
    """The value as JSON text, or ValueRefused with the type and place of what does not fit."""
    if value is None:
        return "null"
    if _may_be_large(value, min(WIDE, limit // 2)):
        _refuse_the_obviously_large(value, limit)
    try:
        encoded = _encode(value)
        same = len(encoded) > limit or _decode(encoded) == value
    except RecursionError:
        raise ValueRefused(f"nested deeper than {MAX_DEPTH} levels") from None
    except Exception:
        raise ValueRefused(_explain(value)) from None
    if len(encoded) > limit:
        raise ValueRefused(
            f"{len(encoded):,} bytes as JSON; the limit is {limit:,}: store it elsewhere, return its address"
        )
    if not same or b"\\u0000" in encoded or _may_be_deep(encoded):
        trouble = _explain(value)
        if trouble or not same:
            raise ValueRefused(trouble)
    return encoded.decode()


def decode(text: str | bytes) -> Any:
    """A fresh copy of the value; two callers never share a list."""
    return _decode(text)


def digest(value: Any) -> str:
    """A short hash of an encodable value that does not depend on the order of keys."""
    return digest_of(_encode_sorted(value))


def digest_of(text: bytes) -> str:
    """A short hash of these very bytes."""
    made = _new_hash()
    made.update(text)
    return made.hexdigest()


def plain_text(text: str, limit: int) -> str:
    """Error text and the like, made storable: no NUL, no lone surrogates, cut to `limit` characters."""
    if len(text) > limit:
        half = limit // 2
        text = f"{text[:half]}\n[... {len(text) - 2 * half:,} characters left out ...]\n{text[-half:]}"
    return text.replace("\0", "\ufffd").encode("utf-8", "replace").decode()


def _may_be_large(value: Any, edge: int) -> bool:
    """Whether a value, or one of the parts of an object that has not too many, has more parts or characters than this."""
    for part in _outermost(value):  # noqa: SIM110 - a generator takes as long again
        if isinstance(part, (str, bytes, list, dict)) and len(part) > edge:
            return True
    return False


def _outermost(value: Any) -> Iterable[Any]:
    return value.values() if type(value) is dict and len(value) <= WIDE else (value,)


def _refuse_the_obviously_large(value: Any, limit: int) -> None:
    """Add up the texts of a value that may be large, and stop at the limit: before it is written out in full."""
    parts = list(_outermost(value))
    size = 0
    while parts:
        part = parts.pop()
        if isinstance(part, (str, bytes, bytearray)):
            size += len(part)
        elif isinstance(part, list):
            size += len(part)
            parts += part
        elif isinstance(part, dict):
            size += sum(len(key) for key in part if isinstance(key, str))
            parts += part.values()
        if size > limit:
            raise ValueRefused(f"over {size:,} bytes; the limit is {limit:,}: store it elsewhere, return its address")


def _may_be_deep(encoded: bytes) -> bool:
    return len(encoded) > 2 * MAX_DEPTH and encoded.count(b"[") + encoded.count(b"{") > MAX_DEPTH


def _explain(value: Any) -> str:
    """Say what in the value JSON cannot carry, and where; an empty text if nothing is wrong."""
    todo: list[tuple[str, Any, int]] = [("", value, 0)]
    while todo:
        path, part, depth = todo.pop()
        place = f" at {path}" if path else ""
        if depth > MAX_DEPTH:
            return f"nested deeper than {MAX_DEPTH} levels{place[:60]}"
        kind = type(part)
        if part is None or kind is bool:
            continue
        if isinstance(part, (int, float, str)) and kind not in (int, float, str) and not _round_trips(part):
            return f"a value of type {kind.__name__}{place}{_instead(part)}"
        if isinstance(part, int):
            # Python itself refuses to write longer ones.
            if part.bit_length() > 4096:
                return f"an integer of {part.bit_length():,} bits{place}: send it as text"
        elif isinstance(part, float):
            if part != part or part in (float("inf"), float("-inf")):
                return f"the number {part!r}{place}, which JSON does not have"
        elif isinstance(part, str):
            if "\0" in part:
                return f"a text with a NUL character{place}"
            if any("\ud800" <= char <= "\udfff" for char in part):
                return f"a text with a lone surrogate{place}"
        elif isinstance(part, list):
            todo += [(f"{path}[{index}]", inner, depth + 1) for index, inner in enumerate(part)]
        elif isinstance(part, dict):
            for key, inner in part.items():
                if not isinstance(key, str):
                    return f"an object key of type {type(key).__name__}{place}: keys are text"
                todo += [(f"{path}.{key}" if path else key, inner, depth + 1), (f"a key{place}", key, depth)]
        else:
            return f"a value of type {kind.__name__}{place}{_instead(part)}"
    return "" if _round_trips(value) else f"a value of type {type(value).__name__} that comes back changed"


def _round_trips(value: Any) -> bool:
    try:
        return bool(_decode(_encode(value)) == value)
    except Exception:
        return False


def _instead(part: Any) -> str:
    if isinstance(part, (tuple, set, frozenset)):
        return ": give a list"
    if isinstance(part, (bytes, bytearray, memoryview)):
        return ": store it elsewhere and give its address, or base64 text"
    return ": give text, a number, a list or an object"
