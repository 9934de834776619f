"""The cursor of an export: what the next one need not read again. docs/reasons/exports-that-lose-nothing.md says why it holds.

A cursor is a mark of the store, taken before the first row was read, with the selection that was exported. It is refused where
its mark means nothing: in another store, after a backup was put back, and for another selection.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping
from typing import NamedTuple

import msgspec

from holdfast.errors import UsageError
from holdfast.model import codec
from holdfast.model.item_filter import Which
from holdfast.store import Transaction

#: Rows of the last export that the cursor remembers, to recognise the history of its store.
WITNESSES = 3


class Mark(NamedTuple):
    """A place in the history of a store, by the numbers of leases on SQLite, and of transactions on PostgreSQL."""

    #: The store, and the server's history in which the numbers have a meaning.
    place: str
    #: The newest number.
    reached: int
    #: Everything up to this number is committed, except for what the snapshot lists.
    seen: int
    #: What was in progress, as the database writes it.
    snapshot: str
    #: The last item, where numbers of leases count.
    last_item: int


class Witness(NamedTuple):
    """An exported row: a stage of an item ends with a lease only once. What ended without a lease has 0."""

    item: int
    stage: int
    lease: int
    ended_at: int


class Cursor(msgspec.Struct, frozen=True, array_like=True):
    mark: Mark
    pipeline: str
    #: The stages by number: a stage that has got another name since, or was not exported, is read completely.
    stages: dict[int, str]
    #: A digest of the rest of the selection.
    selection: str
    witnesses: list[Witness]
    #: The newest event: its number and its time.
    event: tuple[int, int] | None

    def __str__(self) -> str:
        return _PREFIX + base64.urlsafe_b64encode(msgspec.json.encode(self)).decode().rstrip("=")

    @classmethod
    def read(cls, text: str) -> Cursor:
        """The cursor that an export has printed."""
        try:
            if not text.startswith(_PREFIX):
                raise ValueError
            body = text.removeprefix(_PREFIX)
            return _decode(base64.b64decode(body + "=" * (-len(body) % 4), altchars=b"-_", validate=True))
        except (ValueError, binascii.Error, msgspec.DecodeError):
            raise UsageError(f"{_start(text)!r} is not a cursor: give the one that an export has printed") from None


_PREFIX = "hf1-"
_decode = msgspec.json.Decoder(Cursor).decode


def read_mark(tx: Transaction) -> Mark:
    """Where the store stands now."""
    [row] = tx.run("results_mark")
    return Mark(*row)


def digest_of(which: Which) -> str:
    """What a cursor knows of a selection, besides its stages."""
    return codec.digest([sorted(which.states), sorted(which.key or ()), which.error, which.group])


def read_newest_event(tx: Transaction) -> tuple[int, int] | None:
    rows = tx.run("newest_event")
    return (rows[0][0], rows[0][1]) if rows else None


def check(tx: Transaction, cursor: Cursor, now: Mark, which: Which) -> bool:
    """Refuse a cursor that is not of this selection, or not of this store's history. Returns whether the history is known to be
    the one the cursor was made in; if not, everything has to be read again."""
    if (cursor.pipeline, cursor.selection) != (which.pipeline, digest_of(which)):
        raise UsageError(
            "this cursor belongs to an export of another pipeline, or with other filters: use it with the same ones, or export "
            "everything without it"
        )
    if cursor.mark.place != now.place:
        raise UsageError(
            "this cursor belongs to another store, or to another server's copy of this one: export everything without it"
        )
    rows = {Witness(*row) for row in tx.run("find_witnesses", items=[one.item for one in cursor.witnesses])}
    event = [] if cursor.event is None else tx.run("time_of_event", id=cursor.event[0])
    if (
        cursor.mark.reached > now.reached
        or cursor.mark.last_item > now.last_item
        or any(_contradicts(row, one) for one in cursor.witnesses for row in rows)
        or (event and cursor.event and event[0][0] != cursor.event[1])
    ):
        raise UsageError(
            "this cursor is from before a backup of this store was put back, or this is a copy that lags behind: export "
            "everything without it"
        )
    return not rows.isdisjoint(cursor.witnesses)


def _contradicts(row: Witness, witness: Witness) -> bool:
    """Whether a row cannot be what a witness has become: leases only grow, and one ends once."""
    if (row.item, row.stage) != (witness.item, witness.stage) or not row.lease:
        return False
    return row.lease < witness.lease or (row.lease == witness.lease and row.ended_at != witness.ended_at)


def newest(witnesses: Mapping[tuple[int, int], Witness]) -> list[Witness]:
    return sorted(witnesses.values(), key=lambda one: one.lease)[-WITNESSES:]


def _start(text: str) -> str:
    return text if len(text) <= 40 else f"{text[:40]}…"
