"""Claims the next rows for a loop, even if some rows cannot be claimed.

If the database refuses a batch because of one row, the rows are claimed one by one, and the refused row fails with the
database's message. Transient database errors are retried.
"""

from __future__ import annotations

import sqlalchemy as sa

from holdfast.adopt.connections import Open
from holdfast.adopt.loop.batch_or_alone import ALONE
from holdfast.adopt.loop.max_instances import Crowded, take_a_place
from holdfast.adopt.loop.state import LoopState
from holdfast.adopt.loop.transact import patiently, transact, transact_once
from holdfast.adopt.rows.claim import ClaimTerms, claim_directly, claim_rows, claim_unguarded, queued_keys
from holdfast.adopt.rows.outcome import error_text
from holdfast.adopt.rows.sql import Key, key_in, support_of
from holdfast.adopt.rows.stale import fail_queued
from holdfast.adopt.sqlalchemy_errors import kind_of
from holdfast.adopt.table.held_row import Held
from holdfast.model.log_lines import logger
from holdfast.store.database_errors import ErrorKind

log = logger("holdfast.adopt")


def claiming(loop: LoopState, kind: str, most: int) -> list[Held]:
    """Claim a batch of up to `most` rows, or one row alone, even if some rows cannot be claimed."""
    n = 1 if kind == ALONE else most
    try:
        rows = _claim(loop, n, loop.terms[kind])
    except Crowded:
        return []
    except sa.exc.DBAPIError as error:
        if kind_of(error) is ErrorKind.CONFLICT:
            return []
        if kind_of(error) is not ErrorKind.REFUSED:
            raise
        log.warning("%s: a claim was refused, rows are claimed one by one: %s", loop.name, error_text(error))
        rows = _claim_one_by_one(loop, n, loop.terms[kind])
    if rows:
        loop.counters.add(claimed=len(rows))
        log.info("%s: claimed %d", loop.name, len(rows))
    return rows


def _claim(loop: LoopState, n: int, terms: ClaimTerms) -> list[Held]:
    if aside := loop.not_aside():
        terms = terms.but(aside)
    if not loop.guarded:
        return _claim_unguarded(loop, n, terms)

    def work(place: Open) -> list[Held]:
        with take_a_place(place, loop, n) as room:
            return claim_rows(place, terms, room, loop.identity)

    one_statement = loop.max_instances is None and support_of(loop.engine.dialect).returning
    # Only the usual claims are worth caching. A custom order needs a second query, so it cannot run directly.
    is_usual = terms.order_by is None and any(terms is one for one in loop.terms.values())
    is_direct = one_statement and is_usual and loop.is_sqlite

    def transaction() -> list[Held]:
        found = claim_directly(loop.line, loop.engine, terms, n, loop.identity) if is_direct else None
        if found is None:
            found = transact_once(loop.engine, work) if one_statement else transact(loop.engine, work)
        return found

    return patiently(transaction, loop.may_wait_to_begin, loop.nap)


def _claim_unguarded(loop: LoopState, n: int, terms: ClaimTerms) -> list[Held]:
    keys = loop.begin(lambda place: queued_keys(place, terms, n))
    if not keys:
        return []
    rows, twice = loop.begin(lambda place: claim_unguarded(place, terms, keys, loop.identity))
    if twice:
        loop.counters.add(would_have_been_taken_twice=twice)
        log.warning("%s: claimed %d rows that others had already claimed; guarded=False", loop.name, twice)
    return rows


def _claim_one_by_one(loop: LoopState, n: int, terms: ClaimTerms) -> list[Held]:
    rows: list[Held] = []
    for key in loop.begin(lambda place: queued_keys(place, terms.but(loop.not_aside()), n)):
        try:
            rows += _claim(loop, 1, terms.but([key_in(loop.mapping.key, [key])]))
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
