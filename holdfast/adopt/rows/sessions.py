"""ORM sessions: expires loaded attributes that a Core statement has changed.

A Core statement does not update the objects that a Session has loaded. They would show the old values, or write them back.
Only the attributes that were written are expired, so that other unsaved changes of the object survive.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from sqlalchemy import inspect
from sqlalchemy.orm import Session

from holdfast.adopt.connections import Open
from holdfast.adopt.rows.sql import Key
from holdfast.adopt.table.mapping import TableMapping


def show_pending(at: Open) -> None:
    """Flush the Session's pending changes, if it autoflushes before its own queries."""
    if isinstance(at, Session) and at.autoflush:
        at.flush()


def forget(
    at: Open, mapping: TableMapping, keys: Iterable[Key], roles: Iterable[str], others: Iterable[str] = ()
) -> None:
    """Expire the attributes for these columns on the Session's objects for these rows."""
    if not isinstance(at, Session):
        return
    columns = [mapping.columns[role] for role in roles if role in mapping.columns]
    columns += [mapping.find(name) for name in others]
    for one in _loaded(at, mapping, list(keys)):
        attributes = inspect(one).mapper.column_attrs
        known = [found.key for found in attributes if any(mine is one for mine in found.columns for one in columns)]
        if known:
            at.expire(one, known)


def _loaded(session: Session, mapping: TableMapping, keys: Sequence[Key]) -> Iterable[Any]:
    if mapping.mapper is None:
        for one in list(session.identity_map.values()):
            state = inspect(one)
            if mapping.table in state.mapper.tables and tuple(state.identity or ()) in keys:
                yield one
        return
    names = [column.name for column in mapping.key]
    order = [names.index(column.name) for column in mapping.mapper.primary_key if column.name in names]
    for key in keys:
        identity = tuple(key[at] for at in order) if len(order) == len(key) else key
        found = session.identity_map.get(mapping.mapper.identity_key_from_primary_key(identity))
        if found is not None:
            yield found
