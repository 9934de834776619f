"""An item as a handler sees it, and the rule for its key."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Generic

import msgspec

from holdfast.errors import UsageError

if TYPE_CHECKING:
    # With a default, which Python itself knows only from 3.13 on.
    from typing_extensions import TypeVar

    Data = TypeVar("Data", covariant=True, default=dict[str, Any])
else:
    from typing import TypeVar

    Data = TypeVar("Data", covariant=True)

#: In UTF-8; a database index must be able to hold it.
MAX_KEY_BYTES = 1024


class Item(msgspec.Struct, Generic[Data], frozen=True):
    """One thing to process: the key its source gave it, and its data. `Item[Book]` has an instance of Book as its data."""

    pipeline: str
    key: str
    data: Data


def check_key(key: object) -> str:
    """Return the key if it can name an item, else say why not."""
    if not isinstance(key, str):
        raise UsageError(f"item key {key!r}: a key is text, not {type(key).__name__}")
    if not key.strip():
        raise UsageError("item key is empty: give every item a key that names it")
    if "\0" in key:
        raise UsageError(f"item key {key[:60]!r} has a NUL character")
    try:
        size = len(key.encode())
    except UnicodeEncodeError:
        raise UsageError(f"item key {key[:60]!r} has a lone surrogate") from None
    if size > MAX_KEY_BYTES:
        raise UsageError(f"item key {key[:60]!r}… has {size:,} bytes; the limit is {MAX_KEY_BYTES:,}: use a hash of it")
    # A database driver does not accept a subclass of str.
    return key if type(key) is str else str.__str__(key)
