"""The guide to your own tables, and to where they are kept, do what they say: every block is run as it is printed."""

from __future__ import annotations

import re
import shlex
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from click.testing import CliRunner

from holdfast.cli import commands
from tests.support.schemas import bare_schema

ROOT = Path(__file__).resolve().parents[2]
GUIDE = ROOT / "docs" / "guide" / "own-tables.md"
STORAGE = ROOT / "docs" / "guide" / "production-storage.md"


def blocks(page: Path, language: str) -> list[str]:
    found = re.findall(rf"^```{language}\n(.*?)^```$", page.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)
    assert found
    return found


@pytest.fixture
def address(database: str, request: pytest.FixtureRequest) -> Iterator[str | None]:
    """SQLAlchemy's address of an empty PostgreSQL; None: the file that the guide names."""
    if database == "sqlite":
        yield None
        return
    with bare_schema(request.getfixturevalue("postgres")) as url:
        yield url


def run(page: Path, address: str | None) -> dict[str, Any]:
    """Run every Python block of a page, one after the other; on PostgreSQL with its address instead of the file's."""
    names: dict[str, Any] = {"__name__": "guide"}
    for block in blocks(page, "python"):
        if address is not None:
            block = re.sub(r"sqlite(\+aiosqlite)?:///\w+\.db", address, block)
            block = block.replace(', connect_args={"timeout": 30}', "")
        exec(compile(block, page.name, "exec", dont_inherit=True), names)
    return names


@pytest.mark.req("S1", "S3", "S6", "F3", "F4")
def test_every_block_of_the_guide_runs_and_does_what_it_says(
    address: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.chdir(tmp_path)
    names = run(GUIDE, address)
    engine, page, link = names["engine"], names["Page"], names["Link"]
    with engine.connect() as connection:
        states = {url[-1]: state for url, state in connection.execute(sa.select(page.url, page.state))}
        links = connection.execute(sa.select(link.url, link.check_status)).all()
        titles = {url[-1]: title for url, title in connection.execute(sa.select(page.url, page.title))}
        errors = set(connection.scalars(sa.select(page.last_error)))
    # a and b by the first loop, c by the second, k by a tick, d, e and f by hand, g with held.
    done = dict.fromkeys("abckdg", "done")
    assert states == {**done, "e": "new", "f": "new"}
    assert (titles["a"], titles["d"], titles["g"]) == ("About http://example.org/a", "D", "About http://example.org/g")
    assert errors == {None, "no answer"}
    assert dict(links) == {
        "http://example.org/a/next": "completed",
        "http://example.org/b/next": "completed",
        "http://example.org/h": "completed",
        "http://example.org/g/next": "queued",
        "http://example.org/once": "queued",
    }
    assert capsys.readouterr().out.endswith("True False\n")
    engine.dispose()


@pytest.mark.req("F9")
def test_the_storage_note_says_when_to_take_the_database_redis_or_hangfires_storage():
    section = (
        STORAGE.read_text(encoding="utf-8")
        .partition("### Redis, Hangfire, or the database?\n")[2]
        .partition("\n## ")[0]
    )
    rows = [line.split(" | ") for line in section.splitlines() if line.startswith("| ")][1:]
    assert {taken.split(",")[0] for _, taken, _ in rows} >= {"the database", "Redis", "its SQL storage"}
    answers = " ".join(section.split())
    for asked in ("lose no job", "retries that survive a restart", "**SQL storage**", "**Redis storage**"):
        assert asked in answers


@pytest.mark.req("D9")
def test_the_migration_of_the_guide_fits_its_table_and_can_be_taken_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """On a table that has none of the columns yet, in the file that the guide names."""
    monkeypatch.chdir(tmp_path)
    database = sqlite3.connect("pages.db")
    database.execute("CREATE TABLE pages (id INTEGER PRIMARY KEY, url TEXT, state TEXT NOT NULL)")
    database.execute("INSERT INTO pages (url, state) VALUES ('x', 'busy')")
    database.commit()
    [up] = [line for block in blocks(GUIDE, "sh") for line in block.splitlines() if "--url" in line]
    words = shlex.split(up.partition("|")[0])[1:]
    down = CliRunner().invoke(commands, [*words, "--down"], catch_exceptions=False).output
    before = database.execute("SELECT sql FROM sqlite_master ORDER BY name").fetchall()
    script = CliRunner().invoke(commands, words, catch_exceptions=False).output
    database.executescript(script)
    columns = {row[1] for row in database.execute("PRAGMA table_info(pages)")}
    assert columns >= {"last_heartbeat", "started_at", "attempts", "next_attempt_at", "version", "holder"}
    assert database.execute("SELECT count(*) FROM pages_is_job_stale").fetchone() is not None
    down = CliRunner().invoke(commands, [*words, "--down"], catch_exceptions=False).output
    database.executescript(down)
    assert database.execute("SELECT sql FROM sqlite_master ORDER BY name").fetchall() == before
    database.close()


@pytest.mark.req("F9")
def test_every_block_of_the_storage_guide_runs(address: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    names = run(STORAGE, address)
    with names["engine"].connect() as connection:
        if address is None:
            assert connection.exec_driver_sql("PRAGMA journal_mode").scalar() == "wal"
            assert connection.exec_driver_sql("PRAGMA synchronous").scalar() == 2
        assert connection.scalar(sa.select(1)) == 1
    names["engine"].dispose()
