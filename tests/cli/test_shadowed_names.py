"""Functions and operators that somebody else has put in front of PostgreSQL's own are never called by holdfast."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator
from typing import Any
from urllib.parse import quote

import psycopg
import pytest
import sqlalchemy as sa
from psycopg import sql

from holdfast.app import Holdfast
from tests.cli.conftest import Commands
from tests.support.schemas import drop

pytestmark = [pytest.mark.req("P10"), pytest.mark.fault(39), pytest.mark.parametrize("database", ["postgres"])]

BOOKS = """
import sqlalchemy as sa
from holdfast import Permanent, Pipeline

books = Pipeline("books")


def see(connection):
    path = connection.execute(sa.text("SHOW search_path")).scalar_one()
    assert "shadow" in path, path


@books.stage()
def fetch(item, ctx):
    if item.key == "bad":
        raise Permanent("no such page")
    ctx.submit("notes", item.key)
    ctx.effect(see)  # what is the user's own is looked up where the user's role looks
    return ctx.once("ask", dict, cost=0.25)


@books.stage(after="fetch")
def link(item, ctx): ...


notes = Pipeline("notes")


@notes.stage()
def note(item, ctx): ...
"""

#: What a statement may call, with the types of what it is called with.
FUNCTIONS = {
    "set_config(text, text, boolean)": "text",
    "current_setting(text)": "text",
    "clock_timestamp()": "timestamptz",
    "now()": "timestamptz",
    "current_database()": "name",
    "to_regclass(text)": "regclass",
    "pg_backend_pid()": "integer",
    "pg_advisory_xact_lock(bigint)": "void",
    "pg_advisory_xact_lock_shared(bigint)": "void",
    "pg_is_in_recovery()": "boolean",
    "length(text)": "integer",
    "substr(text, integer, integer)": "text",
    "strpos(text, text)": "integer",
    "lower(text)": "text",
    "to_char(date, text)": "text",
    "extract(text, timestamptz)": "numeric",
}
OPERATORS = {
    "= (bigint, bigint)": "boolean",
    "= (integer, integer)": "boolean",
    "= (bigint, integer)": "boolean",
    "= (text, text)": "boolean",
    "= (oid, regclass)": "boolean",
    "<> (text, text)": "boolean",
    "< (bigint, bigint)": "boolean",
    "<= (bigint, bigint)": "boolean",
    "> (bigint, bigint)": "boolean",
    "> (bigint, integer)": "boolean",
    "+ (bigint, bigint)": "bigint",
    "+ (bigint, integer)": "bigint",
    "- (bigint, bigint)": "bigint",
    "* (numeric, integer)": "numeric",
    "* (numeric, numeric)": "numeric",
    "/ (integer, bigint)": "bigint",
    "|| (text, text)": "text",
}


@pytest.fixture
def shadow(postgres: str) -> Iterator[str]:
    """A schema with all of these, each of which fails when it is called."""
    name = f"shadow{secrets.token_hex(4)}"
    with psycopg.connect(postgres, autocommit=True) as conn:
        conn.execute(sql.SQL("CREATE SCHEMA {}").format(sql.Identifier(name)))
        for signature, result in FUNCTIONS.items():
            function, _, arguments = signature.partition("(")
            conn.execute(_making(f'{name}."{function}"({arguments}', result, signature))
        for number, (signature, result) in enumerate(OPERATORS.items()):
            operator, left, right = signature.replace("(", "").replace(")", "").replace(",", "").split()
            conn.execute(_making(f"{name}.operator{number}({left}, {right})", result, signature))
            how = f"FUNCTION = {name}.operator{number}, LEFTARG = {left}, RIGHTARG = {right}"
            conn.execute(f"CREATE OPERATOR {name}.{operator} ({how})".encode())
        yield name
        drop(conn, name)


def _making(signature: str, result: str, shown: str) -> bytes:
    body = f"BEGIN RAISE EXCEPTION 'shadowed: {shown}'; END"
    return f"CREATE FUNCTION {signature} RETURNS {result} LANGUAGE plpgsql AS $f$ {body} $f$".encode()


@pytest.fixture(params=["{0},pg_catalog,public", "pg_catalog,{0},public"], ids=["in front", "behind"])
def shadowed(cli: Any, shadow: str, request: pytest.FixtureRequest) -> str:
    """The store's address, with that schema in front of PostgreSQL's own, or behind it: an operator for exactly the types of
    its operands is taken from there as well."""
    return f"{cli.url}&options={quote(f'-csearch_path={request.param.format(shadow)}')}"


def test_everything_works_with_a_search_path_full_of_traps(
    shadowed: str, shadow: str, write: Callable[[str, str], str]
) -> None:
    commands = Commands(shadowed)
    file = write("books.py", BOOKS)
    commands("db", "upgrade")
    commands("add", file, "a", "b", "bad", "--pipeline", "books")
    commands("run", file, "--one-at-a-time", code=3)
    for command in (
        ["retry", "--state", "failed"],
        ["cancel", "--pipeline", "books"],
        ["retry", "--key", "bad"],
        ["pause", "books"],
        ["resume", "books"],
        ["delete", "b", "--yes"],
        ["db", "check", "--repair"],
        ["plan", file],
        ["reprocess", file, "--pipeline", "books"],
        ["prune", "--events-older-than", "1d"],
        ["status"],
        ["items", "--state", "done"],
        ["why", "a", "--pipeline", "books"],
        ["events"],
        ["errors"],
        ["costs"],
        ["limits"],
        ["doctor"],
        ["db", "upgrade"],
    ):
        commands(*command)
    commands("run", file, code=3)
    shown = commands.json("show", "a", "--pipeline", "books")
    assert shown["status"] == "done" and "shadowed" not in str(shown)


def test_items_are_added_in_a_transaction_of_the_callers_whose_search_path_stays_as_it_was(
    cli: Any, shadowed: str, shadow: str, write: Callable[[str, str], str]
) -> None:
    Commands(shadowed)("add", write("books.py", BOOKS), "first", "--pipeline", "books")
    engine = sa.create_engine(
        shadowed.replace("postgresql://", "postgresql+psycopg://").replace("schema=", "application_name=")
    )
    # SQLAlchemy asks for functions of its own when it connects; this is about what is asked after that.
    with Holdfast(shadowed) as app, engine.connect() as connection:
        app.add("books", ["second"], connection=connection)
        path = connection.exec_driver_sql("SHOW search_path").scalar_one()
        assert shadow in path
        connection.commit()
    engine.dispose()
    assert [one["key"] for one in cli.json("items", "--pipeline", "books")] == ["first", "second"]
