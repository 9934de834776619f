"""Statements for databases that are not at hand: what MySQL and MariaDB are sent."""

from __future__ import annotations

import re
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy import Column, DateTime, Dialect, Integer, MetaData, Table, Text
from sqlalchemy.dialects import mysql, postgresql, sqlite

from holdfast.adopt import TableMapping
from holdfast.adopt.rows.database_differences import Choice, changing
from holdfast.adopt.rows.finish import finishing
from holdfast.adopt.rows.sql import Support, TableSql, key_in, support_of
from holdfast.adopt.table.held_row import Held

TABLE = Table(
    "my jobs",
    MetaData(),
    Column("id", Integer, primary_key=True),
    Column("status", Text),
    Column("who", Text),
    Column("n", Integer),
    Column("beat", DateTime),
    Column("due", DateTime),
    Column("error", Text),
)
MAPPING = TableMapping(TABLE, holder="who", attempts="n", heartbeat="beat", next_attempt="due", error="error")


def dialect(name: str, version: tuple[int, ...]) -> Dialect:
    found: Any = mysql.dialect(is_mariadb=name == "mariadb")  # type: ignore[no-untyped-call]
    found.server_version_info = version
    return found


def sent(statement: Any, to: Dialect) -> str:
    return re.sub(r"\s+", " ", str(statement.compile(dialect=to))).strip()


MYSQL = dialect("mysql", (8, 0, 36))


@pytest.mark.parametrize(
    ("name", "version", "skip_locked"),
    [
        ("mysql", (8, 0, 36), True),
        ("mysql", (5, 7, 44), False),
        ("mariadb", (10, 6, 1), True),
        ("mariadb", (10, 5, 9), False),
    ],
)
@pytest.mark.req("S2")
def test_row_locks_are_used_where_the_version_has_skip_locked(name: str, version: tuple[int, ...], skip_locked: bool):
    assert support_of(dialect(name, version)) == Support(skip_locked, returning=False)


def test_postgresql_and_sqlite_return_what_they_changed():
    assert support_of(postgresql.dialect()) == Support(True, True)  # type: ignore[no-untyped-call]
    assert support_of(sqlite.dialect()) == Support(False, True)  # type: ignore[no-untyped-call]
    assert support_of(sa.engine.default.DefaultDialect()) == Support(False, False)


@pytest.mark.req("S2")
@pytest.mark.parametrize("name", ["mysql", "mariadb"])
def test_a_claim_looks_with_skip_locked_and_then_changes_under_the_guard(name: str):
    to = dialect(name, (11, 4))
    chosen = Choice("queued", TableSql(MAPPING, to).claimable(), 10).select(MAPPING).with_for_update(skip_locked=True)
    assert sent(chosen, to) == (
        "SELECT `my jobs`.id FROM `my jobs` WHERE `my jobs`.status = 'queued' AND "
        "(`my jobs`.due IS NULL OR `my jobs`.due <= utc_timestamp(6)) AND coalesce(`my jobs`.n, %s) < %s "
        "ORDER BY `my jobs`.id LIMIT %s FOR UPDATE SKIP LOCKED"
    )
    taken = changing(MAPPING, "queued", {"status": "processing"}).where(key_in(MAPPING.bare_key, [(1,), (2,)]))
    assert sent(taken, to) == (
        "UPDATE `my jobs` SET status=%s WHERE `my jobs`.status = 'queued' AND `my jobs`.id IN (__[POSTCOMPILE_id_1])"
    )


def test_a_row_is_finished_under_its_token():
    held = Held(MAPPING, 1, 1, token="t")
    sql = TableSql(MAPPING, MYSQL)
    setting = sql.changes("queued", {"error": "x", "holder": None, "next_attempt": 30.0})
    guard = [key_in(MAPPING.bare_key, [(1,)]), *sql.fenced(sql.fence_values(held))]
    done = changing(MAPPING, "processing", setting).where(*guard)
    assert sent(done, MYSQL) == (
        "UPDATE `my jobs` SET status=%s, who=%s, due=timestampadd(MICROSECOND, %s, utc_timestamp(6)), error=%s "
        "WHERE `my jobs`.status = 'processing' AND `my jobs`.id = %s AND `my jobs`.who = %s"
    )
    assert finishing(MAPPING, MYSQL, "queued", frozenset({"error", "holder", "next_attempt"})).text.startswith(
        "UPDATE `my jobs` SET status=%s, who=%s, due=timestampadd(MICROSECOND, %s, utc_timestamp(6)), error=%s"
    )


def test_staleness_is_measured_on_the_databases_clock():
    assert sent(TableSql(MAPPING, MYSQL).is_stale(60.0), MYSQL) == (
        "`my jobs`.beat < timestampadd(MICROSECOND, %s, utc_timestamp(6))"
    )
    to: Any = postgresql.dialect()  # type: ignore[no-untyped-call]
    assert "statement_timestamp()" in sent(TableSql(MAPPING, to).is_stale(60.0), to)
