"""`holdfast db grants`: what roles of PostgreSQL need, and that it is enough."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator
from typing import Any
from urllib.parse import quote, urlsplit, urlunsplit

import psycopg
import pytest
from psycopg import sql

from tests.cli.conftest import Commands

pytestmark = pytest.mark.req("P10", "V14")

BOOKS = """
from holdfast import Permanent, Pipeline

books = Pipeline("books")


@books.stage()
def fetch(item, ctx):
    if item.key == "bad":
        raise Permanent("no such page")
    ctx.submit("notes", item.key)
    return ctx.once("ask", dict, cost=0.25)


@books.stage(after="fetch")
def link(item, ctx): ...


notes = Pipeline("notes")


@notes.stage()
def note(item, ctx): ...
"""


@pytest.fixture
def worker(postgres: str) -> Iterator[str]:
    """A role that may log in, and nothing else. Its name has to be quoted."""
    name = f'the "worker" {secrets.token_hex(4)}'
    with psycopg.connect(postgres, autocommit=True) as conn:
        conn.execute(sql.SQL("CREATE ROLE {} LOGIN").format(sql.Identifier(name)))
        yield name
        conn.execute(sql.SQL("DROP OWNED BY {}").format(sql.Identifier(name)))
        conn.execute(sql.SQL("DROP ROLE {}").format(sql.Identifier(name)))


@pytest.mark.parametrize("database", ["postgres"])
def test_a_worker_does_all_of_its_work_with_these_rights_and_may_change_no_table(
    cli: Any, postgres: str, worker: str, write: Callable[[str, str], str]
) -> None:
    file = write("books.py", BOOKS)
    parts = urlsplit(cli.url)
    as_worker = Commands(
        urlunsplit(parts._replace(netloc=f"{quote(worker, safe='')}@{parts.netloc.rpartition('@')[2]}"))
    )
    assert "permission denied" in as_worker("add", file, "a", "--pipeline", "books", code=5).stderr
    with psycopg.connect(postgres, autocommit=True) as conn:
        for grant in cli("db", "grants", "--worker", worker).stdout.splitlines():
            conn.execute(grant)
    as_worker("add", file, "a", "b", "bad", "--pipeline", "books")
    as_worker("run", file, code=3)
    for act in (
        ["retry", "--state", "failed"],
        ["cancel", "--pipeline", "books"],
        ["retry", "--key", "bad"],
        ["pause", "books"],
        ["resume", "books"],
        ["delete", "b", "--yes"],
        ["db", "check", "--repair"],
        ["reprocess", file, "--pipeline", "books"],
        ["prune", "--events-older-than", "1d"],
        ["status"],
        ["errors"],
        ["export", "books"],
        ["costs"],
        ["doctor"],
    ):
        as_worker(*act)
    as_worker("run", file, code=3)
    assert cli.json("show", "a", "--pipeline", "books")["status"] == "done"
    schema = sql.Identifier(_schema(cli.url))
    with psycopg.connect(postgres, autocommit=True) as conn:
        conn.execute(sql.SQL("SET ROLE {}").format(sql.Identifier(worker)))
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            conn.execute(sql.SQL("ALTER TABLE {}.items ADD COLUMN mine text").format(schema))
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            conn.execute(sql.SQL("CREATE TABLE {}.mine (n int)").format(schema))


def _schema(url: str) -> str:
    return next(part.removeprefix("schema=") for part in urlsplit(url).query.split("&") if part.startswith("schema="))


@pytest.mark.parametrize("database", ["sqlite"])
def test_a_file_has_no_roles_and_somebody_has_to_be_named(cli: Any) -> None:
    assert "a SQLite file has no roles" in cli("db", "grants", "--worker", "w", code=2).stderr
    assert "name a role" in cli("db", "grants", "--store", "postgresql:///x", code=2).stderr
