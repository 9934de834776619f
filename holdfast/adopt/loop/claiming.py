"""Taking: the next rows for a loop, whatever is wrong with some of them.

Where the database refuses a batch because of one of its rows, the others are claimed one by one, and that one says why it
could not be. Trouble that passes is waited for.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import sqlalchemy as sa

from holdfast.adopt.connections import Open, connection_of
from holdfast.adopt.database_errors import kind_of
from holdfast.adopt.loop.max_instances import Crowded, take_a_place
from holdfast.adopt.loop.steps import Steps, Transact, patiently
from holdfast.adopt.loop.what_to_claim import ALONE
from holdfast.adopt.rows.claim import claim, claimable, order_of, take_directly
from holdfast.adopt.rows.dialects import Choice, way_of
from holdfast.adopt.rows.finish import error_text
from holdfast.adopt.rows.sqlite_direct import Direct
from holdfast.adopt.rows.stale import fail_queued
from holdfast.adopt.rows.unguarded_claim import look, take_anyway
from holdfast.adopt.table.held_row import Held
from holdfast.model.logs import logger
from holdfast.store.database_errors import ErrorKind

if TYPE_CHECKING:
    from holdfast.adopt.loop.loop import Loop

log = logger("holdfast.adopt")

Conditions = Sequence[sa.ColumnElement[bool]]


def claiming(loop: Loop, kind: str, most: int) -> Steps[list[Held]]:
    """Take a batch of at most so many rows, or one row alone, whatever is wrong with some of them."""
    n = 1 if kind == ALONE else most
    try:
        rows = yield from _claim(loop, n, loop.choices[kind])
    except Crowded:
        return []
    except sa.exc.DBAPIError as error:
        if kind_of(error) is ErrorKind.CONFLICT:
            return []
        if kind_of(error) is not ErrorKind.REFUSED:
            raise
        log.warning("%s: a claim was refused, rows are claimed one by one: %s", loop.name, error_text(error))
        rows = yield from _claim_one_by_one(loop, n, loop.choices[kind])
    if rows:
        loop.counters.add(claimed=len(rows))
        log.info("%s: claimed %d", loop.name, len(rows))
    return rows


def _claim(loop: Loop, n: int, chosen: Conditions) -> Steps[list[Held]]:
    aside = loop.not_aside()
    conditions = [*chosen, *aside]
    if not loop.guarded:
        keys = yield from patiently(
            Transact(lambda place: look(place, loop.mapping, n, conditions, loop.order_by)), loop.may_wait_to_begin
        )
        if not keys:
            return []
        rows, twice = yield from patiently(
            Transact(lambda place: take_anyway(place, loop.mapping, keys, loop.identity, loop.columns)),
            loop.may_wait_to_begin,
        )
        if twice:
            loop.counters.add(would_have_been_taken_twice=twice)
            log.warning("%s: took %d rows that others had taken; the guarded claim is off", loop.name, twice)
        return list(rows)

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

    def directly() -> Direct | None:
        columns = None if loop.columns is None else tuple(loop.columns)
        return take_directly(loop.engine.dialect, loop.mapping, n, tuple(chosen), loop.identity, columns)

    one_statement = loop.max_instances is None and way_of(loop.engine.dialect).endswith("returned")
    # A statement is kept for what is said again and again. An order of the user's takes a second one.
    is_usual = not aside and any(chosen is one for one in loop.choices.values())
    is_direct = one_statement and is_usual and loop.order_by is None
    step = Transact(work, is_single=one_statement, direct=directly if is_direct else None)
    rows = yield from patiently(step, loop.may_wait_to_begin)
    return list(rows)


def _claim_one_by_one(loop: Loop, n: int, chosen: Conditions) -> Steps[list[Held]]:
    mapping = loop.mapping

    def candidates(place: Open) -> list[Any]:
        connection = connection_of(place, mapping)
        conditions = claimable(connection.dialect, mapping, [*chosen, *loop.not_aside()])
        choice = Choice("queued", conditions, n, order_of(mapping, loop.order_by))
        return [tuple(row) for row in connection.execute(choice.select(mapping))]

    rows: list[Held] = []
    for key in (yield from patiently(Transact(candidates), loop.may_wait_to_begin)):
        own = sa.and_(*(column == value for column, value in zip(mapping.key, key, strict=True)))
        try:
            rows += yield from _claim(loop, 1, [*chosen, own])
        except sa.exc.DBAPIError as error:
            if kind_of(error) is not ErrorKind.REFUSED:
                raise
            yield from _refused(
                loop, key, error, lambda place, key=key, error=error: fail_queued(place, mapping, key, error)
            )
    return rows


def _refused(loop: Loop, key: tuple[Any, ...], error: sa.exc.DBAPIError, saying: Any) -> Steps[None]:
    """The database does not let this row be changed: let it say so itself, or else keep away from it for a while."""
    shown = key if len(key) > 1 else key[0]
    try:
        if (yield from patiently(Transact(saying), loop.may_wait_to_begin)):
            loop.counters.add(failed=1)
            loop.counters.add_error(error_text(error))
            log.warning("%s: row %r failed, the database refused it: %s", loop.name, shown, error_text(error))
    except sa.exc.DBAPIError as worse:
        if kind_of(worse) not in (ErrorKind.REFUSED, ErrorKind.CONFLICT):
            raise
        loop.set_aside(key)
        loop.counters.add(refused=1)
        loop.counters.add_error(error_text(worse))
        log.warning("%s: row %r cannot be changed at all, and is set aside: %s", loop.name, shown, error_text(worse))
