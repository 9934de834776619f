"""A query on any database: its rows become items, and its transaction is over before the first is handed on."""

from __future__ import annotations

import sqlite3
import time
from contextlib import closing

import psycopg
import pytest

from holdfast.errors import UsageError
from holdfast.sources import SourceFailed
from holdfast.sources.contract import LookEnded

pytestmark = pytest.mark.req("J20")

SELECT = "SELECT id, title FROM books ORDER BY id"


@pytest.fixture
def books(tmp_path):
    with closing(sqlite3.connect(tmp_path / "books.db")) as connection, connection:
        connection.execute("CREATE TABLE books (id INTEGER PRIMARY KEY, title TEXT, cover BLOB)")
        connection.executemany("INSERT INTO books VALUES (?, ?, ?)", [(1, "Emma", b"\x89PNG"), (2, "Walden", None)])
    return tmp_path / "books.db"


def source(query=SELECT, url="sqlite:///books.db", **more):
    return {"sql": query, "url": url, "key": "id", **more}


def test_rows_become_items_by_the_key_column_and_a_relative_path_begins_beside_the_file(look, books):
    assert look(source()).items == {"1": {"id": 1, "title": "Emma"}, "2": {"id": 2, "title": "Walden"}}
    assert look(source(url=f"sqlite:///{books}")).items.keys() == {"1", "2"}


@pytest.mark.fault(59)
def test_what_happens_in_the_table_during_a_look_changes_nothing_in_it_and_nobody_is_kept_waiting(look, books):
    stream = look.open(source()).look({})
    assert next(stream).key == "1"
    with closing(sqlite3.connect(books, timeout=0)) as connection, connection:
        connection.execute("DELETE FROM books WHERE id = 2")
        connection.execute("INSERT INTO books (id, title) VALUES (3, 'New'), (-1, 'Renumbered')")
    assert [found.key for found in stream] == ["2"]


def test_values_of_a_database_become_values_of_json(look, postgres):
    query = (
        "SELECT 1 AS id, 1.50::numeric AS price, DATE '2026-03-02' AS day, TIMESTAMPTZ '2026-03-02 10:00+00' AS at, "
        "'{\"a\": [1]}'::jsonb AS j, '5 minutes'::interval AS long, ARRAY[1, 2] AS many, NULL AS nothing, "
        "'100%' AS odd, ':x' AS colon"
    )
    [row] = look(source(query, postgres)).items.values()
    assert {**row, "at": row["at"][:10]} == {
        "id": 1,
        "price": "1.50",
        "day": "2026-03-02",
        "at": "2026-03-02",
        "j": {"a": [1]},
        "long": 300.0,
        "many": [1, 2],
        "nothing": None,
        "odd": "100%",
        "colon": ":x",
    }


def test_a_large_result_comes_in_pieces_and_in_order(look, postgres):
    found = look(source("SELECT n AS id FROM generate_series(1, 5000) AS n", postgres))
    assert list(found.items) == [str(n) for n in range(1, 5001)]


def test_a_row_that_json_cannot_carry_is_skipped_and_counted(look, books):
    looked = look(source("SELECT id, cover FROM books"))
    assert (list(looked.items), looked.bad) == (["2"], 1)
    assert looked.source.bad_example.startswith("row 1: a value of type bytes at cover: ")


def test_a_row_without_a_key_is_skipped_and_counted(look, books):
    looked = look(source("SELECT CASE WHEN id = 1 THEN id END AS id FROM books ORDER BY 1 DESC"))
    assert (list(looked.items), looked.bad) == (["1"], 1)


@pytest.mark.parametrize(
    "query", ["DELETE FROM books", "UPDATE books SET title = ''", "DROP TABLE books", "CREATE TABLE x (y)"]
)
def test_a_query_only_reads(look, books, query):
    with pytest.raises(SourceFailed, match="the query failed: attempt to write a readonly database"):
        look(source(query))
    assert len(look(source()).items) == 2


def test_a_query_only_reads_on_postgres_too(look, postgres):
    with psycopg.connect(postgres, autocommit=True) as connection:
        connection.execute("CREATE SEQUENCE source_numbers")
        try:
            with pytest.raises(SourceFailed, match="read-only transaction"):
                look(source("SELECT nextval('source_numbers') AS id", postgres))
        finally:
            connection.execute("DROP SEQUENCE source_numbers")


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (source(url="sqlite:///gone.db"), "gone.db does not exist"),
        (source(url="sqlite://"), "database in memory"),
        (source("SELECT nonsense"), "the query failed: no such column: nonsense"),
        (source(key="isbn"), "no column 'isbn'; it has: id, title"),
        (source(url="postgresql://me:secret@127.0.0.1:1/x"), "the query failed: connection failed"),
        (source(url="mysql+nothere://me:secret@h/x"), "the query failed|package"),
        (source(""" SELECT """), "the query failed"),
    ],
)
def test_what_cannot_be_asked_is_one_clear_line_without_a_secret(look, books, given, said):
    with pytest.raises(SourceFailed, match=said) as raised:
        look(given)
    assert "secret" not in str(raised.value)
    assert not (books.parent / "gone.db").exists()


@pytest.mark.req("V12")
@pytest.mark.fault(82)
@pytest.mark.parametrize("password", ["hun@ter22", "hun#ter22", "hun/ter22", "12/ter22", "hun?ter22"])
def test_an_address_whose_password_ends_too_early_is_refused_before_a_driver_shows_the_rest_as_a_host(look, password):
    with pytest.raises(
        UsageError, match=r"url: the address cannot be read: .* write these as %40, %2F, %3F and %23"
    ) as raised:
        look.open(source(url=f"postgresql://me:{password}@127.0.0.1:1/books"))
    assert "hun" not in str(raised.value)
    assert "ter22" not in str(raised.value)


def test_an_address_that_is_none_is_refused_when_it_is_read_and_not_shown(look):
    with pytest.raises(UsageError, match=r"^test: source 's': url: this is not the address of a database") as raised:
        look.open(source(url="secret"))
    assert "secret" not in str(raised.value)
    with pytest.raises(UsageError, match="sql needs 'url'"):
        look.open({"sql": SELECT})


def test_a_result_that_does_not_end_is_cut_at_the_size_limit(look, books):
    endless = "WITH RECURSIVE n(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM n) SELECT x AS id FROM n"
    with pytest.raises(SourceFailed, match="returns more than 10,000 bytes"):
        look(source(endless, max_bytes="10KB"))


def test_a_query_that_finds_nothing_for_ever_ends_with_the_look(look, books):
    endless = "WITH RECURSIVE n(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM n) SELECT x AS id FROM n WHERE x < 0"
    opened = look.open(source(endless))
    until = time.monotonic() + 0.3

    def check():
        if time.monotonic() > until:
            raise LookEnded("enough")

    opened.check = check
    with pytest.raises(LookEnded, match="enough"):
        list(opened.look({}))


def test_a_query_on_postgres_has_a_time_limit(look, postgres):
    with pytest.raises(SourceFailed, match="statement timeout"):
        look(source("SELECT pg_sleep(20), 1 AS id", postgres, query_timeout="200ms"))
