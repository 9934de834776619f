"""Fencing tokens: a claim writes one into the row's holder column, so that no other claim can finish the row.

Each claim gets a new token. Its middle part identifies the loop or process, so that instances can be counted. That part is
random at every start, because host names and process ids recur.
"""

from __future__ import annotations

import os
import secrets
import uuid
from typing import Any

from sqlalchemy import Column, String, Uuid

from holdfast.adopt.table.times import plain

_INSTANCE = 12
#: `<instance>-<claim>`, with a label before it if there is room.
TOKEN_LENGTH = 2 * _INSTANCE + 1
_LABEL = 40


class LoopIdentity:
    """Identifies the claimer: a random instance id for this start, and a human-readable label."""

    def __init__(self, label: str = "", instance: str | None = None) -> None:
        self.label = "".join(char if char.isprintable() else "?" for char in label)[:_LABEL]
        self._instance = instance or secrets.token_hex(_INSTANCE // 2)
        self._process = os.getpid()

    @property
    def instance(self) -> str:
        """The instance id; a forked process gets a new one."""
        if self._process != os.getpid():
            self._process, self._instance = os.getpid(), secrets.token_hex(_INSTANCE // 2)
        return self._instance

    def token(self, column: Column[Any] | None) -> Any:
        """A token for one claim, in this column's type and length; None without a column."""
        if column is None:
            return None
        kind = plain(column.type)
        if isinstance(kind, Uuid):
            found = uuid.UUID(hex=self.instance + secrets.token_hex(10), version=4)
            return found if kind.as_uuid else str(found)
        text = f"{self.instance}-{secrets.token_hex(_INSTANCE // 2)}"
        room = (kind.length if isinstance(kind, String) and kind.length is not None else 100) - len(text) - 1
        return f"{self.label[:room]}-{text}" if self.label and room > 0 else text


def instance_of(token: Any) -> str:
    """The instance id in a token; the whole text if the token is not one of ours."""
    if isinstance(token, uuid.UUID):
        return token.hex[:_INSTANCE]
    text = str(token).strip()
    parts = text.rsplit("-", 2)
    if len(parts) >= 2 and len(parts[-2]) == _INSTANCE:
        return parts[-2]
    return text.replace("-", "")[:_INSTANCE] if len(text) == 36 else text


_mine = LoopIdentity()


def identity(given: str | LoopIdentity | None) -> LoopIdentity:
    """The given identity; or the process's own, with the given label if there is one."""
    if isinstance(given, LoopIdentity):
        return given
    return LoopIdentity(given, _mine.instance) if given else _mine
