"""One table says what an error of a database means, to the store and to loops over users' tables alike."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
import sqlalchemy as sa

from holdfast.adopt.sqlalchemy_errors import kind_of, passes
from holdfast.errors import StoreBroken, StoreConflict, StoreUnavailable
from holdfast.store import database_errors, open_store
from holdfast.store.database_errors import MYSQL_NUMBERS, SQLITE_CODES, SQLSTATES, ErrorKind
from holdfast.store.postgres_server import translated as of_postgres
from holdfast.store.sqlite_files import translated as of_sqlite
from tests.adopt.places import engine_on
from tests.support.mariadb import MariaDB

OURS = {
    "conflict": StoreConflict,
    "moved": StoreConflict,
    "passing": StoreUnavailable,
    "broken": StoreBroken,
    "refused": type(None),
    "wrong": type(None),
}
EXPECTED = {
    "08006": "passing",
    "08P01": "passing",
    "22003": "refused",
    "22P02": "refused",
    "23502": "refused",
    "23505": "refused",
    "23514": "refused",
    "25006": "passing",
    "25P02": "wrong",
    "25P03": "passing",
    "25P04": "passing",
    "26000": "moved",
    "28000": "broken",
    "28P01": "broken",
    "3D000": "broken",
    "3F000": "broken",
    "40001": "conflict",
    "40002": "refused",
    "40P01": "conflict",
    "42501": "broken",
    "42601": "wrong",
    "42703": "wrong",
    "42P01": "broken",
    "42P05": "moved",
    "44000": "refused",
    "53100": "passing",
    "53200": "passing",
    "53300": "passing",
    "54000": "refused",
    "54001": "wrong",
    "55006": "passing",
    "55P03": "passing",
    "57014": "passing",
    "57P01": "passing",
    "57P02": "passing",
    "57P03": "passing",
    "57P04": "broken",
    "58030": "passing",
    "72000": "passing",
    "P0001": "refused",
    "XX000": "passing",
    "XX001": "broken",
    "XX002": "broken",
}


@pytest.fixture(scope="module")
def server(postgres: str) -> sa.Engine:
    engine = engine_on(postgres)
    yield engine
    engine.dispose()


@pytest.mark.req("V7")
@pytest.mark.parametrize(("state", "kind"), EXPECTED.items())
def test_a_store_and_a_loop_judge_an_error_of_postgresql_alike(state: str, kind: str, server: sa.Engine):
    with server.connect() as connection, pytest.raises(sa.exc.DBAPIError) as raised:
        connection.exec_driver_sql(f"DO $$ BEGIN RAISE EXCEPTION 'as asked' USING ERRCODE = '{state}'; END $$")
    error = raised.value.orig
    assert isinstance(error, psycopg.Error) and error.sqlstate == state
    assert kind_of(raised.value) == kind
    assert passes(raised.value) == (kind in ("conflict", "passing", "moved"))
    assert isinstance(of_postgres(error, "here"), OURS[kind])


def test_every_entry_of_the_table_is_judged_by_the_test_above():
    beginnings = {known for known in SQLSTATES if not any(state.startswith(known) for state in EXPECTED)}
    assert beginnings == {"09", "27"}  # which PostgreSQL never sends: they are of the standard


# SQLite ---------------------------------------------------------------------------------------------------------------


class Kept(sqlite3.Connection):
    """A connection that can be given things to keep."""


def with_(file: Path, *statements: str, uri: str = "mode=rwc") -> Kept:
    connection = sqlite3.connect(f"file:{file}?{uri}", uri=True, timeout=0, isolation_level=None, factory=Kept)
    for statement in statements:
        connection.execute(statement)
    return connection


def locked_by_another(file: Path) -> Kept:
    connection = with_(file, "CREATE TABLE t (n)")
    connection.other = with_(file, "BEGIN IMMEDIATE")  # type: ignore[attr-defined]
    return connection


def full(file: Path) -> Kept:
    return with_(file, "CREATE TABLE t (n)", "PRAGMA max_page_count = 2")


def damaged(file: Path) -> Kept:
    with_(file, "PRAGMA page_size = 512", "CREATE TABLE t (n)", "INSERT INTO t VALUES (1)").close()
    written = bytearray(file.read_bytes())
    written[512:1024] = b"\xff" * 512
    file.write_bytes(written)
    return with_(file)


def no_database(file: Path) -> Kept:
    file.write_bytes(b"something else, and longer than the header of a database is" * 20)
    return with_(file)


def not_utf8(file: Path) -> Kept:
    return with_(file, "CREATE TABLE t (n)", "INSERT INTO t VALUES (CAST(x'ff' AS TEXT))")


PROVOKED: dict[str, tuple[Callable[[Path], Kept], str, int | None, str]] = {
    "busy": (locked_by_another, "INSERT INTO t VALUES (1)", 5, "passing"),
    "read-only": (
        lambda file: (with_(file, "CREATE TABLE t (n)").close(), with_(file, uri="mode=ro"))[1],
        "INSERT INTO t VALUES (1)",
        8,
        "broken",
    ),
    "damaged": (damaged, "SELECT * FROM t", 11, "broken"),
    "full": (full, "INSERT INTO t VALUES (zeroblob(100000))", 13, "passing"),
    "not to be opened": (
        lambda file: with_(file, f"ATTACH 'file:{file}.d/no/such/file.db?mode=ro' AS other"),
        "SELECT 1",
        14,
        "broken",
    ),
    "too big": (lambda file: with_(file), "SELECT zeroblob(2000000000)", 18, "refused"),
    "a constraint": (
        lambda file: with_(file, "CREATE TABLE t (n NOT NULL)"),
        "INSERT INTO t VALUES (NULL)",
        19,
        "refused",
    ),
    "a trigger": (
        lambda file: with_(
            file,
            "CREATE TABLE t (n)",
            "CREATE TRIGGER no BEFORE INSERT ON t BEGIN SELECT RAISE(ABORT, 'no'); END",
        ),
        "INSERT INTO t VALUES (1)",
        19,
        "refused",
    ),
    "a mismatch": (
        lambda file: with_(file, "CREATE TABLE t (n INTEGER PRIMARY KEY)"),
        "INSERT INTO t VALUES ('x')",
        20,
        "refused",
    ),
    "no database": (no_database, "SELECT * FROM sqlite_schema", 26, "broken"),
    "a wrong statement": (lambda file: with_(file), "SELEKT 1", 1, "wrong"),
    "no such table": (lambda file: with_(file), "SELECT * FROM t", 1, "wrong"),
    "not UTF-8": (not_utf8, "SELECT n FROM t", None, "refused"),
}


@pytest.mark.req("V7")
@pytest.mark.parametrize("what", PROVOKED)
def test_a_store_and_a_loop_judge_an_error_of_sqlite_alike(what: str, tmp_path: Path):
    make, statement, code, kind = PROVOKED[what]
    with pytest.raises(sqlite3.Error) as raised:
        make(tmp_path / "own.db").execute(statement).fetchall()
    assert database_errors.sqlite_code_of(raised.value) == code
    assert_alike(raised.value, kind)


@pytest.mark.parametrize(("code", "kind"), SQLITE_CODES.items())
def test_codes_of_sqlite_that_cannot_be_provoked_are_judged_alike_too(code: int, kind: ErrorKind):
    error = sqlite3.OperationalError("as asked")
    error.sqlite_errorcode = code | 0x300
    assert_alike(error, kind)


def assert_alike(error: sqlite3.Error, kind: str) -> None:
    wrapped: Any = sa.exc.DBAPIError.instance("SELECT 1", {}, error, sqlite3.Error)
    assert kind_of(wrapped) == kind
    assert isinstance(of_sqlite(error, Path("own.db")), OURS[kind])


# MySQL and MariaDB ----------------------------------------------------------------------------------------------------

EXPECTED_NUMBERS = {
    1020: "conflict",
    1021: "passing",
    1040: "passing",
    1044: "broken",
    1045: "broken",
    1047: "passing",
    1049: "broken",
    1053: "passing",
    1114: "passing",
    1129: "passing",
    1130: "broken",
    1142: "broken",
    1143: "broken",
    1146: "broken",
    1158: "passing",
    1159: "passing",
    1160: "passing",
    1161: "passing",
    1184: "passing",
    1203: "passing",
    1205: "conflict",
    1206: "passing",
    1213: "conflict",
    1226: "passing",
    1227: "broken",
    1290: "passing",
    1292: "refused",
    1317: "passing",
    1364: "refused",
    1365: "refused",
    1370: "broken",
    1644: "refused",
    1690: "refused",
    1698: "broken",
    1792: "passing",
    1836: "passing",
    1927: "passing",
    1969: "passing",
    2002: "passing",
    2003: "passing",
    2006: "passing",
    2013: "passing",
    2055: "passing",
    3024: "passing",
    3572: "passing",
    3819: "refused",
    4025: "refused",
    4031: "passing",
    # In no table: an integrity error of the driver, a syntax error, an unknown column.
    1062: "refused",
    1064: "wrong",
    1054: "wrong",
}


@pytest.fixture(scope="module")
def maria() -> Iterator[sa.Engine]:
    with MariaDB() as server:
        engine = engine_on(server.database("errors"))
        yield engine
        engine.dispose()


@pytest.mark.req("V7")
@pytest.mark.together("mariadb")
@pytest.mark.parametrize(("number", "kind"), EXPECTED_NUMBERS.items())
def test_a_loop_judges_an_error_of_mysql_by_its_number(number: int, kind: str, maria: sa.Engine):
    with maria.connect() as connection, pytest.raises(sa.exc.DBAPIError) as raised:
        connection.exec_driver_sql(f"SIGNAL SQLSTATE 'HY000' SET MYSQL_ERRNO = {number}, MESSAGE_TEXT = 'as asked'")
    assert raised.value.orig is not None and raised.value.orig.args[0] == number
    assert kind_of(raised.value) == kind
    assert passes(raised.value) == (kind in ("conflict", "passing", "moved"))


def test_every_number_of_the_table_is_judged_by_the_test_above():
    assert set(MYSQL_NUMBERS) <= set(EXPECTED_NUMBERS)


# Without a code -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "kind"), [({"database": "no_such_database"}, "broken"), ({"username": "nobody_here"}, "broken")]
)
def test_a_connection_that_is_refused_for_good_is_not_waited_for(change: dict[str, str], kind: str, postgres: str):
    """The refusal has no code; a loop used to wait for it to pass."""
    engine = sa.create_engine(engine_on(postgres).url.set(**change))
    with pytest.raises(sa.exc.OperationalError) as raised:
        engine.connect()
    assert kind_of(raised.value) == kind


def test_a_server_that_is_not_there_is_waited_for(tmp_path: Path):
    engine = sa.create_engine(f"postgresql+psycopg://u@/d?host={tmp_path}")
    with pytest.raises(sa.exc.OperationalError) as raised:
        engine.connect()
    assert kind_of(raised.value) == "passing"
    with pytest.raises(StoreUnavailable):
        open_store(f"postgresql://u@/d?host={tmp_path}").schema_version()


def test_an_error_that_is_not_of_a_database_has_no_kind():
    assert kind_of(ValueError("5")) is None
    assert kind_of(TimeoutError()) is None
    assert kind_of(sa.exc.TimeoutError()) == "passing"  # no connection of the pool was free
