"""Claims the next rows for a loop, even if some rows cannot be claimed.

If the database refuses a batch because of one row, the rows are claimed one by one, and the refused row fails with the
database's message. Transient database errors are retried.
"""

from __future__ import annotations

from collections.abc import Sequence

import sqlalchemy as sa

from holdfast.adopt.connections import Open
from holdfast.adopt.database_errors import kind_of
from holdfast.adopt.loop.max_instances import Crowded, take_a_place
from holdfast.adopt.loop.state import LoopState
from holdfast.adopt.loop.transact import patiently, transact, transact_once
from holdfast.adopt.loop.what_to_claim import ALONE
from holdfast.adopt.rows.claim import claim, claim_directly, claim_unguarded, queued_keys
from holdfast.adopt.rows.outcome import error_text
from holdfast.adopt.rows.sql import Key, key_in, support_of
from holdfast.adopt.rows.stale import fail_queued
from holdfast.adopt.table.held_row import Held
from holdfast.model.logs import logger
from holdfast.store.database_errors import ErrorKind

log = logger("holdfast.adopt")

Conditions = Sequence[sa.ColumnElement[bool]]


def claiming(loop: LoopState, kind: str, most: int) -> list[Held]:
    """Claim a batch of up to `most` rows, or one row alone, even if some rows cannot be claimed."""
    n = 1 if kind == ALONE else most
    try:
        rows = _claim(loop, n, loop.choices[kind])
    except Crowded:
        return []
    except sa.exc.DBAPIError as error:
        if kind_of(error) is ErrorKind.CONFLICT:
            return []
        if kind_of(error) is not ErrorKind.REFUSED:
            raise
        log.warning("%s: a claim was refused, rows are claimed one by one: %s", loop.name, error_text(error))
        rows = _claim_one_by_one(loop, n, loop.choices[kind])
    if rows:
        loop.counters.add(claimed=len(rows))
        log.info("%s: claimed %d", loop.name, len(rows))
    return rows


def _keys(loop: LoopState, n: int, conditions: Conditions) -> list[Key]:
    return loop.begin(lambda place: queued_keys(place, loop.mapping, n, conditions, loop.order_by))


def _claim(loop: LoopState, n: int, chosen: Conditions) -> list[Held]:
    aside = loop.not_aside()
    conditions = [*chosen, *aside]
    if not loop.guarded:
        keys = _keys(loop, n, conditions)
        if not keys:
            return []
        rows, twice = loop.begin(lambda place: claim_unguarded(place, loop.mapping, keys, loop.identity, loop.columns))
        if twice:
            loop.counters.add(would_have_been_taken_twice=twice)
            log.warning("%s: claimed %d rows that others had already claimed; guarded=False", loop.name, twice)
        return rows

    def work(place: Open) -> list[Held]:
        with take_a_place(place, loop, n) as room:
            return claim(
                place,
                loop.mapping,
                room,
                where=conditions,
                order_by=loop.order_by,
                holder=loop.identity,
                columns=loop.columns,
            )

    one_statement = loop.max_instances is None and support_of(loop.engine.dialect).returning
    # Only the usual claims are worth caching. A custom order needs a second query, so it cannot run directly.
    is_usual = not aside and any(chosen is one for one in loop.choices.values())
    is_direct = one_statement and is_usual and loop.order_by is None and loop.engine.dialect.name == "sqlite"

    def transaction() -> list[Held]:
        found = None
        if is_direct:
            found = claim_directly(loop.line, loop.engine, loop.mapping, n, tuple(chosen), loop.identity, loop.columns)
        if found is None:
            found = transact_once(loop.engine, work) if one_statement else transact(loop.engine, work)
        return found

    return patiently(transaction, loop.may_wait_to_begin, loop.nap)


def _claim_one_by_one(loop: LoopState, n: int, chosen: Conditions) -> list[Held]:
    mapping = loop.mapping
    rows: list[Held] = []
    for key in _keys(loop, n, [*chosen, *loop.not_aside()]):
        try:
            rows += _claim(loop, 1, [*chosen, key_in(mapping.key, [key])])
        except sa.exc.DBAPIError as error:
            if kind_of(error) is not ErrorKind.REFUSED:
                raise
            _fail_refused(loop, key, error)
    return rows


def _fail_refused(loop: LoopState, key: Key, error: sa.exc.DBAPIError) -> None:
    """The database refused to change this row: fail it with the reason or, if that is refused too, skip it for now."""
    try:
        if loop.begin(lambda place: fail_queued(place, loop.mapping, key, error)):
            loop.counters.add(failed=1)
            loop.counters.add_error(error_text(error))
            log.warning("%s: row %r failed, the database refused it: %s", loop.name, key, error_text(error))
    except sa.exc.DBAPIError as worse:
        if kind_of(worse) not in (ErrorKind.REFUSED, ErrorKind.CONFLICT):
            raise
        loop.refused(key, worse, "cannot be changed at all, and is skipped for now")
