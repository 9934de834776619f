"""Tokens: what a claim writes into a row's holder column, so that nobody else can finish the row.

A token is new for every claim. Its middle part is the same for all claims of one loop, or one process, which is how
instances are counted; it is random at every start, since names of hosts and processes come back.
"""

from __future__ import annotations

import os
import secrets
import uuid
from typing import Any

from sqlalchemy import Column, String, Uuid

from holdfast.adopt.table.times import plain

_INSTANCE = 12
#: `<instance>-<claim>`, and before it a label where there is room.
TOKEN_LENGTH = 2 * _INSTANCE + 1
_LABEL = 40


class LoopIdentity:
    """Who claims: a random number for this start, and a label for people."""

    def __init__(self, label: str = "") -> None:
        self.label = "".join(char if char.isprintable() else "?" for char in label)[:_LABEL]
        self._instance = secrets.token_hex(_INSTANCE // 2)
        self._process = os.getpid()

    @property
    def instance(self) -> str:
        """Of this process: a fork is somebody else."""
        if self._process != os.getpid():
            self._process, self._instance = os.getpid(), secrets.token_hex(_INSTANCE // 2)
        return self._instance

    def token(self, column: Column[Any]) -> Any:
        """A token for one claim, as this column can hold it."""
        kind = plain(column.type)
        if isinstance(kind, Uuid):
            found = uuid.UUID(hex=self.instance + secrets.token_hex(10), version=4)
            return found if kind.as_uuid else str(found)
        text = f"{self.instance}-{secrets.token_hex(_INSTANCE // 2)}"
        room = (kind.length if isinstance(kind, String) and kind.length is not None else 100) - len(text) - 1
        return f"{self.label[:room]}-{text}" if self.label and room > 0 else text


def instance_of(token: Any) -> str:
    """Whose token this is; of one that is not ours, the whole of it."""
    if isinstance(token, uuid.UUID):
        return token.hex[:_INSTANCE]
    text = str(token).strip()
    parts = text.rsplit("-", 2)
    if len(parts) >= 2 and len(parts[-2]) == _INSTANCE:
        return parts[-2]
    return text.replace("-", "")[:_INSTANCE] if len(text) == 36 else text


_mine = LoopIdentity()


def identity(given: str | LoopIdentity | None) -> LoopIdentity:
    """The process's own identity, one with a label, or the one that was given."""
    if isinstance(given, LoopIdentity):
        return given
    if not given:
        return _mine
    labelled = LoopIdentity(given)
    labelled._instance = _mine.instance
    return labelled
