"""Statements are written once and laid over each database; every one of them runs on both."""

from __future__ import annotations

import re
from importlib import resources

import psycopg
import pytest

from holdfast.store.postgres_dialect import PostgresDialect
from holdfast.store.sqlite_dialect import SQLiteDialect

DIALECTS = [SQLiteDialect(), PostgresDialect("holdfast")]
SHARED = resources.files("holdfast.store") / "sql"
each_dialect = pytest.mark.parametrize("dialect", DIALECTS, ids=lambda dialect: dialect.name)


#: Where a round trip costs something, whole writes have a statement of their own beside their steps.
AT_ONCE = {"add_at_once", "claim_at_once"}


def test_both_dialects_have_the_same_statements_with_the_same_parameters():
    ours, theirs = (dialect.statements() for dialect in DIALECTS)
    assert ours.keys() == theirs.keys() - AT_ONCE
    for name, statement in ours.items():
        assert statement.lists == theirs[name].lists, name
        assert statement.columns == theirs[name].columns, name
        assert statement.shared == theirs[name].shared, name
        named = _parameters(theirs[name].text, r"%\(([a-z_]+)\)s")
        # Rows that are written out have no name of their own.
        unnamed = {"rows", *statement.shared} if statement.row else set()
        assert _parameters(statement.text, r":([a-z_]+)") == named - unnamed, name


def _parameters(text, pattern):
    return set(re.findall(rf"(?<![:\w]){pattern}", text))


@each_dialect
def test_a_statement_for_one_database_has_a_shared_text_or_a_counterpart_in_a_file_of_the_same_name(dialect):
    shared = {name for file in SHARED.iterdir() if file.is_file() for name in _names(file)}
    [other] = [one.name for one in DIALECTS if one.name != dialect.name]
    for file in (SHARED / dialect.name).iterdir():
        assert re.match(r"-- (?!name:)\w", file.read_text()), f"{file.name} begins without a reason"
        counterpart = SHARED / other / file.name
        expected = shared | (AT_ONCE if file.name == "at_once.sql" else set())
        expected |= set(_names(counterpart)) if counterpart.is_file() else set()
        assert set(_names(file)) <= expected, file.name


def test_no_shared_statement_needs_what_only_postgresql_has():
    for file in SHARED.iterdir():
        if file.is_file():
            assert not re.search(r"\bctid\b|FOR UPDATE|SKIP LOCKED", file.read_text()), file.name


def _names(file):
    return re.findall(r"^-- name: (\w+)$", file.read_text(), re.MULTILINE)


def test_every_statement_is_understood_by_its_database(store):
    """Planned, not run: a wrong name, type or word in any of them shows here."""
    dialect = store.connect().dialect
    for statement in dialect.statements().values():
        try:
            _plan(store, dialect, statement, "1")
        except psycopg.errors.DatatypeMismatch:
            # The server takes a bare text for what it is compared with, but not for what it is to become.
            _plan(store, dialect, statement, 1)


def _plan(store, dialect, statement, value):
    pattern = r"(?<![:\w]):([a-z_]+)" if dialect.name == "sqlite" else r"%\(([a-z_]+)\)s"
    params = dict.fromkeys(re.findall(pattern, statement.text), value)
    params |= {name: dialect.pack_list([1]) for name in statement.lists}
    params |= {"snapshot": "1:1:"} if "snapshot" in params else {}
    if statement.row and dialect.name == "sqlite":
        params = [1] * (len(statement.shared) + len(statement.columns))
    elif statement.columns:
        params["rows"] = dialect.pack_rows([[1] * len(statement.columns)])
    run = store.driver._run if dialect.name == "sqlite" else store.driver._execute
    store.write(lambda tx: [run(f"EXPLAIN {step}", params) for step in statement.text.split(";\n")])


@each_dialect
def test_a_word_that_the_dialect_does_not_have_is_an_error_at_once(dialect):
    with pytest.raises(KeyError, match="no_such_word"):
        dialect.render("wrong", "SELECT 1 {no_such_word}")


def test_values_of_an_insert_are_written_out_row_by_row_or_travel_as_one():
    text = "INSERT INTO holdfast_commits (writer, seq, at) {values writer bigint, seq bigint, at bigint}"
    sqlite, postgres = (dialect.render("x", text) for dialect in DIALECTS)
    assert (sqlite.text, sqlite.row) == ("INSERT INTO holdfast_commits (writer, seq, at) VALUES (?, ?, ?)", "(?, ?, ?)")
    assert "SELECT r.writer, r.seq, r.at FROM unnest((%(rows)s::text[])[1:1]::bigint[], " in postgres.text
    assert sqlite.columns == postgres.columns == ("writer", "seq", "at")


def test_on_postgres_many_rows_travel_by_copy_unless_something_follows_them():
    dialect = PostgresDialect("holdfast")
    text = "INSERT INTO holdfast_commits (writer, seq) {values writer bigint, seq bigint}"
    plain, careful = dialect.render("x", text), dialect.render("y", f"{text} ON CONFLICT DO NOTHING")
    assert (dialect.copy_text(plain) or "").startswith('COPY "holdfast".commits (writer, seq) FROM STDIN')
    assert dialect.copy_text(careful) is None
    assert dialect.copy_text(dialect.render("z", "SELECT 1")) is None


ODD = [
    '"',
    "\\",
    '\\"',
    "a,b",
    "null",
    "",
    "\\.",
    "\\N",
    "é]\u2028[",
    "'",
    "%s",
    "]\n[",
    "tab\t",
    "\r\n",
    "\x01",
    "\\n",
    None,
]


@pytest.mark.parametrize("count", [1, 15, 16, 200])
def test_whatever_texts_hold_they_come_back_as_they_went_in(store, count):
    """Also where a text is written otherwise by JSON than by a COPY: then all of them travel the other way."""
    rows = [
        (7, f"event {number}", number, ODD[number % len(ODD)] if count > 16 else ODD[number % 12])
        for number in range(count)
    ]

    def work(tx):
        statement = tx.store.driver.dialect.render(
            "insert",
            "INSERT INTO holdfast_events (at, event, item, resource, data) "
            "{values at bigint, event text, item bigint, resource text, data text}",
        )
        tx.store.driver.run_rows(statement, [(*row, "{}") for row in rows], {})
        table = tx.store.driver.dialect.table("events")
        return tx.store.driver.run_text(f"SELECT at, event, item, resource FROM {table} WHERE at = 7 ORDER BY item")

    assert store.write(work) == rows


@pytest.mark.parametrize("count", [1, 7, 8, 9, 63, 64, 65, 200])
def test_as_many_rows_are_inserted_as_are_given(store, count):
    rows = [(number, 1, number) for number in range(1000, 1000 + count)]

    def work(tx):
        statement = tx.store.driver.dialect.render(
            "insert", "INSERT INTO holdfast_commits (writer, seq, at) {values writer bigint, seq bigint, at bigint}"
        )
        tx.store.driver.run_rows(statement, rows, {})
        return tx.store.driver.run_text(
            f"SELECT writer, seq, at FROM {tx.store.driver.dialect.table('commits')} WHERE writer >= 1000 AND seq = 1 "
            "AND at = writer ORDER BY writer"
        )

    assert store.write(work) == rows


def test_a_parameter_a_list_and_rows_are_written_as_each_database_wants_them():
    sqlite, postgres = (
        dialect.render("x", "SELECT a::text FROM holdfast_items WHERE n = :n AND id {in ids} AND key {in keys text}")
        for dialect in DIALECTS
    )
    assert sqlite.text == (
        "SELECT a::text FROM holdfast_items WHERE n = :n "
        "AND id IN (SELECT value FROM json_each(:ids)) AND key IN (SELECT value FROM json_each(:keys))"
    )
    assert postgres.text == (
        'SELECT a::text FROM "holdfast".items WHERE n = %(n)s AND id = ANY(%(ids)s::bigint[]) AND key = ANY(%(keys)s::text[])'
    )
    assert sqlite.lists == postgres.lists == {"ids", "keys"}


def test_the_columns_of_rows_are_known_to_whoever_packs_them():
    for dialect in DIALECTS:
        statement = dialect.render("x", "SELECT r.a FROM {rows a bigint, b text}")
        assert statement.columns == ("a", "b")


def test_an_index_is_named_where_the_database_takes_it():
    sqlite, postgres = (
        dialect.render("x", "SELECT 1 FROM holdfast_items i {by ix_items}").text for dialect in DIALECTS
    )
    assert sqlite == "SELECT 1 FROM holdfast_items i INDEXED BY ix_items"
    assert postgres == 'SELECT 1 FROM "holdfast".items i '


def test_a_percent_sign_in_a_text_is_no_parameter_on_postgresql():
    assert DIALECTS[1].render("x", "SELECT 1 % 2").text == "SELECT 1 %% 2"


@pytest.mark.parametrize("schema", ["holdfast", "Mixed Case", 'quo"ted', "drop table x; --", "ünïcode"])
def test_a_schema_name_is_quoted(schema):
    text = PostgresDialect(schema).render("x", "SELECT 1 FROM holdfast_items").text
    quoted = schema.replace('"', '""')
    assert text == f'SELECT 1 FROM "{quoted}".items'


@pytest.mark.parametrize("count", [1, 15, 16, 200])
def test_what_all_rows_share_is_given_once(store, count):
    def work(tx):
        statement = tx.store.driver.dialect.render(
            "insert", "INSERT INTO holdfast_commits (seq, at, writer) {values :seq bigint, :at bigint, writer bigint}"
        )
        tx.store.driver.run_rows(statement, [(number,) for number in range(1000, 1000 + count)], {"seq": 3, "at": 5})
        return tx.store.driver.run_text(
            f"SELECT writer, seq, at FROM {tx.store.driver.dialect.table('commits')} WHERE writer >= 1000 ORDER BY writer"
        )

    assert store.write(work) == [(number, 3, 5) for number in range(1000, 1000 + count)]
