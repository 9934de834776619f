"""Readers for the options of sources: each checks one kind of value, and names its location if it is wrong."""

from __future__ import annotations

import codecs
import re
from collections.abc import Mapping
from typing import Any

from holdfast.errors import UsageError, ValueRefused
from holdfast.model import codec
from holdfast.model.durations import seconds
from holdfast.model.guard_conditions import read_size

_HEADER = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
#: Headers that we set ourselves.
_OWN_HEADERS = frozenset(
    {"host", "accept-encoding", "connection", "content-length", "transfer-encoding", "if-none-match"}
)


def text(value: Any, what: str) -> str:
    if not isinstance(value, str) or not value.strip() or "\0" in value or not is_unicode(value):
        raise UsageError(f"{what}: {value!r} is not a text")
    return value


def is_unicode(value: str) -> bool:
    """Whether a text has no lone surrogates."""
    return value.encode("utf-8", "ignore") == value.encode("utf-8", "surrogatepass")


def flag(value: Any, what: str) -> bool:
    if not isinstance(value, bool):
        raise UsageError(f"{what}: {value!r} is neither true nor false")
    return value


def whole_number(value: Any, what: str) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value < 2**31:
        raise UsageError(f"{what}: {value!r} is not a whole number above zero")
    return value


def length(value: Any, what: str) -> float:
    """Seconds."""
    return seconds(value, what=what)


def some_time(value: Any, what: str) -> float:
    """Seconds, more than zero."""
    given = seconds(value, what=what)
    if not given:
        raise UsageError(f"{what}: {value!r} is too short, expected more than zero")
    return given


def size(value: Any, what: str) -> int:
    """Bytes."""
    given = read_size(value, what=what)
    if not given:
        raise UsageError(f"{what}: {value!r} leaves room for nothing")
    return given


def mapping(value: Any, what: str) -> dict[str, Any]:
    if not isinstance(value, Mapping) or not all(isinstance(key, str) for key in value):
        raise UsageError(f"{what}: {value!r} is not a mapping with texts as keys")
    return dict(value)


def as_json(value: Any, what: str) -> Any:
    """Anything that can be stored and compared as JSON."""
    try:
        return codec.plain(value)
    except ValueRefused as error:
        raise UsageError(f"{what}: {error}") from None


def json_mapping(value: Any, what: str) -> dict[str, Any]:
    """A mapping that can be stored and compared as JSON."""
    given: dict[str, Any] = as_json(mapping(value, what), what)
    return given


def path(value: Any, what: str) -> str:
    """A path into JSON: names and numbers separated by dots, like `data.items.0.id`."""
    given = text(value, what)
    if not all(given.split(".")):
        raise UsageError(f"{what}: {value!r} is not a path; write names with dots between, like 'data.items'")
    return given


def dotted(value: Any, what: str) -> str:
    """The full name of something in a module."""
    given = text(value, what)
    parts = given.split(".")
    if len(parts) < 2 or not all(part.isidentifier() for part in parts):
        raise UsageError(f"{what}: {value!r} is no full name; write it like 'my_package.my_module.find'")
    return given


def encoding(value: Any, what: str) -> str:
    given = text(value, what)
    try:
        if not codecs.lookup(given)._is_text_encoding:
            raise LookupError
    except LookupError:
        raise UsageError(f"{what}: {value!r} is no encoding; write it like 'utf-8' or 'latin-1'") from None
    try:
        codecs.getincrementaldecoder(given)(BAD_BYTES).decode("key,name\n".encode(given))
    except (UnicodeError, LookupError):
        raise UsageError(f"{what}: {value!r} is not an encoding of files; write it like 'utf-8' or 'latin-1'") from None
    return given


def _bad_bytes(error: UnicodeError) -> tuple[str, int]:
    if not isinstance(error, UnicodeDecodeError):
        raise error
    return "\udcff", error.end


#: Decodes bytes that do not fit the encoding as lone surrogates, which cannot be stored, so that their row is refused.
#: `surrogateescape` does this for few encodings only.
BAD_BYTES = "holdfast.bad_bytes"
codecs.register_error(BAD_BYTES, _bad_bytes)


def one_character(value: Any, what: str) -> str:
    if not isinstance(value, str) or len(value) != 1 or value in '\r\n\0"':
        raise UsageError(f"{what}: {value!r} is not one character, like ',' or ';'")
    return value


def headers(value: Any, what: str) -> dict[str, str]:
    """HTTP headers. Their values may be secret and are never shown."""
    given = mapping(value, what) if isinstance(value, Mapping) else None
    if given is None:
        raise UsageError(f"{what}: give a mapping from names to texts")
    for name, content in given.items():
        if not _HEADER.fullmatch(name) or name.lower() in _OWN_HEADERS:
            raise UsageError(f"{what}: {name!r} cannot be set")
        if not isinstance(content, str) or not content.isprintable() or not content.isascii():
            raise UsageError(f"{what}: {name}: its value is not a plain text of one line")
    return given
