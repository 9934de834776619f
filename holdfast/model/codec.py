"""The only JSON encoder: a value is turned into its JSON form once, when it is handed over, or it is refused.

Most values are their own form, which the round trip proves: what is written decodes to something equal. Only what does
not is taken apart (`json_form`). Texts are stored as JSON with keys in the order given; hashes are taken over the form
with sorted keys, so that order alone never makes two values differ.
"""

from __future__ import annotations

import hashlib
from functools import lru_cache
from typing import Any

import msgspec

from holdfast.errors import UsageError, ValueRefused
from holdfast.model.json_form import MAX_DEPTH, json_form

#: How large a payload or a result may be as JSON.
MAX_BYTES = 16 * 1024 * 1024
#: Anything with more parts, or characters, is checked before it is written out.
WIDE = 1000

_encode = msgspec.json.Encoder().encode
_encode_sorted = msgspec.json.Encoder(order="sorted").encode
_decode = msgspec.json.Decoder().decode
#: Copied for every hash, since creating one costs as much as filling it.
_new_hash = hashlib.blake2b(digest_size=16).copy


def encode(value: Any, *, limit: int = MAX_BYTES) -> str:
    """The value's JSON form as text, or ValueRefused with the type and place of what has none."""
    return encoded(value, limit=limit)[0]


def encoded(value: Any, *, limit: int = MAX_BYTES) -> tuple[str, Any]:
    """The same, and the form itself, for its hash; a value that is its own form is not copied."""
    if value is None:
        return "null", None
    edge = WIDE if limit > 2 * WIDE else limit // 2
    try:
        for part in value.values() if type(value) is dict and len(value) <= WIDE else (value,):
            if isinstance(part, (str, bytes, list, dict)) and len(part) > edge:
                _refuse_the_obviously_large(value, limit)
                break
        text = _encode(value)
        same = len(text) > limit or _decode(text) == value
    except ValueRefused:
        raise
    except RecursionError:
        raise ValueRefused(f"nested deeper than {MAX_DEPTH} levels") from None
    except Exception:
        text, same = b"", False
    if len(text) > limit:
        raise ValueRefused(
            f"{len(text):,} bytes as JSON; the limit is {limit:,}: store it elsewhere (ctx.keep), return its address"
        )
    if not same or b"\\u0000" in text or _may_be_deep(text):
        form = json_form(value, limit)
        if not same:
            return encoded(form, limit=limit)
    return text.decode(), value


def plain(value: Any) -> Any:
    """The JSON form of a value, as it is used from now on."""
    return _decode(encode(value))


def decode(text: str | bytes) -> Any:
    """A fresh copy of the value; two callers never share a list."""
    return _decode(text)


#: Stands for a text that is not JSON.
_UNREADABLE = object()


def stored(text: str | None, otherwise: Any, shape: Any = None) -> Any:
    """The value of a text in the database; the default if it is not of this shape (`model/shapes.py`), or of its type. Other
    programs may have written to the tables, and one bad row must not prevent reading the others."""
    value = decode_if_possible(text, Any if shape is None else shape)
    return (
        value if value is not _UNREADABLE and (shape is not None or isinstance(value, type(otherwise))) else otherwise
    )


def shown(text: str) -> Any:
    """A stored value for people to read; one that cannot be decoded is shown as it is."""
    value = decode_if_possible(text)
    return {"cannot be read": plain_text(str(text), 200)} if value is _UNREADABLE else value


def is_json(text: str | None, shape: Any = object) -> bool:
    """Whether a text in the database decodes to this type."""
    return decode_if_possible(text, shape) is not _UNREADABLE


def decode_if_possible(text: str | None, shape: Any = Any) -> Any:
    """The decoded value; a value that JSON cannot have if the text is not JSON, or not of this shape."""
    try:
        return _decode(text or "") if shape is Any else _decoder(shape).decode(text or "")
    except (msgspec.DecodeError, TypeError, ValueError, RecursionError):
        return _UNREADABLE


@lru_cache
def _decoder(shape: Any) -> msgspec.json.Decoder[Any]:
    return msgspec.json.Decoder(shape)


def digest(value: Any) -> str:
    """A short hash of an encodable value that does not depend on the order of keys."""
    return digest_of(_encode_sorted(value))


def digest_of(text: bytes) -> str:
    """A short hash of these bytes."""
    made = _new_hash()
    made.update(text)
    return made.hexdigest()


def plain_text(text: str, limit: int) -> str:
    """Error text and the like, made storable: no NUL, no lone surrogates, cut to `limit` characters."""
    if len(text) > limit:
        half = limit // 2
        text = f"{text[:half]}\n[... {len(text) - 2 * half:,} characters left out ...]\n{text[-half:]}"
    return text.replace("\0", "\ufffd").encode("utf-8", "replace").decode()


def require_storable(**texts: str | None) -> None:
    """Refuse, by its name, a text that no column can have: to look for it is a mistake of whoever asks."""
    for what, text in texts.items():
        if text is not None and plain_text(text, len(text)) != text:
            raise UsageError(f"{what} {text!r}: nothing that is stored can have such a character in it")


def _refuse_the_obviously_large(value: Any, limit: int) -> None:
    """Add up the sizes of the texts in a large value, and stop at the limit, before it is written out."""
    parts = list(value.values()) if type(value) is dict and len(value) <= WIDE else [value]
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
            raise ValueRefused(
                f"over {size:,} bytes; the limit is {limit:,}: store it elsewhere (ctx.keep), return its address"
            )


def _may_be_deep(encoded: bytes) -> bool:
    return len(encoded) > 2 * MAX_DEPTH and encoded.count(b"[") + encoded.count(b"{") > MAX_DEPTH
