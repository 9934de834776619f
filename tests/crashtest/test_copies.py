"""A crash test takes place in copies: what is there is not touched, and nothing is left behind."""

from __future__ import annotations

import sqlite3
import uuid
from pathlib import Path

import msgspec
import psycopg
import pytest

from holdfast import Context, Holdfast, Item, Pipeline
from holdfast.crashtest import copies
from holdfast.crashtest.subject_client import SubjectServer
from holdfast.errors import StoreError, UsageError
from holdfast.testing import crashtest
from tests.support.kept import content_in

#: Its store is named in it, and it opens a connection when it is loaded and keeps it.
OWN_STORE = """
import os
import sqlite3

from holdfast import Pipeline

books = Pipeline("books", store="sqlite:///{store}")
own = sqlite3.connect(os.environ["BOOKS"].removeprefix("sqlite:///"), check_same_thread=False)
own.execute("CREATE TABLE IF NOT EXISTS loaded (n INTEGER)")
own.commit()


@books.stage()
def extract(item, ctx):
    return [text for (text,) in own.execute("SELECT text FROM shelf")]
"""

PLAIN = """
from holdfast import Pipeline

books = Pipeline("books")


@books.stage()
def extract(item, ctx):
    return item.data
"""


KEEPS = """
from holdfast import Pipeline

books = Pipeline("books")


@books.stage()
def extract(item, ctx):
    old = ctx.blob(item.data["page"]).read() if "page" in item.data else b"nothing"
    return {"page": ctx.keep(b"after " + old)}
"""

books = Pipeline("books")


@books.stage()
def extract(item: Item, ctx: Context) -> object:
    return item.data


@pytest.fixture
def plain(tmp_path: Path) -> Path:
    file = tmp_path / "plain.py"
    file.write_text(PLAIN)
    return file


@pytest.mark.req("V2", "J21")
def test_the_store_that_the_file_names_is_left_as_it_is_and_every_run_begins_with_the_template(tmp_path: Path):
    store, template, file = tmp_path / "real.db", tmp_path / "template.db", tmp_path / "own_store.py"
    for path, text in ((store, "real"), (template, "a copy")):
        with sqlite3.connect(path) as connection:
            connection.execute("CREATE TABLE shelf (text TEXT)")
            connection.execute("INSERT INTO shelf VALUES (?)", [text])
        connection.close()
    before = {path: path.read_bytes() for path in (store, template)}
    file.write_text(OWN_STORE.format(store=store))
    report = crashtest(file, item="v.epub", template=template, variables=["BOOKS"], only=[3])
    report.assert_ok()
    assert [kill.starts for kill in report.kills] == [2]
    assert report.tables == ["loaded", "shelf"]
    assert {path: path.read_bytes() for path in (store, template)} == before
    left = {path.name for path in tmp_path.iterdir()} - {"__pycache__"}
    assert left == {"own_store.py", "real.db", "template.db"}
    # It cannot be forked with a connection open, and is loaded for every run instead.
    named, loaded = report.notes
    assert "names a store of its own" in named
    assert "every run loads the file anew" in loaded


@pytest.mark.req("P13")
def test_every_run_begins_with_the_content_of_the_template_and_the_real_place_is_left_as_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    template, file, real = tmp_path / "template.db", tmp_path / "keeps.py", tmp_path / "real"
    file.write_text(KEEPS)
    with Holdfast(f"sqlite:///{template}") as app:
        app.upgrade()
        reference = msgspec.to_builtins(app._blobs.keep(b"old page"))
    crashtest(file, item={"key": "x", "page": reference}, template=template, only=[1, 2]).assert_ok()
    assert content_in(tmp_path / "template.db.blobs") == {b"old page"}
    monkeypatch.setenv("HOLDFAST_BLOBS", str(real))
    crashtest(file, item="x", only=[1]).assert_ok()
    assert not real.exists()


@pytest.mark.req("J13")
def test_what_a_handler_uses_without_saying_that_it_reads_it_is_noted(plain: Path):
    plain.write_text(PLAIN.replace("stage()", 'stage(reads=["path"])'))
    report = crashtest(plain, item={"key": "v.epub", "path": "v", "shelf": 7}, kill=False)
    [note] = report.notes
    assert note.startswith("stage 'extract' uses 'shelf' of the item's data and does not say so")


@pytest.mark.req("V2")
def test_databases_of_a_crash_test_are_gone_when_it_ends_also_when_it_fails(
    postgres: str, plain: Path, monkeypatch: pytest.MonkeyPatch
):
    # Others may have theirs on the same server.
    name = f"t{uuid.uuid4().hex[:12]}"
    monkeypatch.setattr(copies.secrets, "token_hex", lambda _: name)

    def databases() -> list[str]:
        with psycopg.connect(postgres) as connection:
            found = connection.execute(
                "SELECT datname FROM pg_database WHERE datname LIKE %s", [f"holdfast_crashtest_{name}%"]
            )
            return [name for (name,) in found]

    with copies.copies_for(postgres, plain.parent, None):
        assert databases() == [f"holdfast_crashtest_{name}"]
    assert databases() == []
    with pytest.raises(
        UsageError, match="there is no table 'nothing' in the copy of the store; the tables there are: none"
    ):
        crashtest(plain, item="v.epub", store=postgres, tables=["nothing"])
    assert databases() == []
    with pytest.raises(
        StoreError, match=r"no database for the crash test could be created .* the right to create databases"
    ):
        crashtest(plain, item="v.epub", store=postgres, template="no such database")


@pytest.mark.req("J21")
def test_what_cannot_be_tested_is_an_error_that_says_what_to_do(tmp_path: Path, plain: Path):
    with pytest.raises(UsageError, match="has no pipeline 'chapters': say which of books the item is for"):
        crashtest(plain, item="v.epub", pipeline="chapters")
    with pytest.raises(
        UsageError, match="there is no function 'create': name one as module:function, or one of the file"
    ):
        crashtest(plain, item="v.epub", setup="create")


@pytest.mark.req("V2")
def test_what_waits_in_a_template_is_not_run_and_an_item_that_is_done_there_is_refused(tmp_path: Path, plain: Path):
    template = tmp_path / "template.db"
    with Holdfast(f"sqlite:///{template}", [books.spec]) as app:
        app.add("books", ["done.epub"])
        app.run()
        app.add("books", ["waiting.epub"])
    report = crashtest(plain, item="v.epub", template=template, only=[3])
    report.assert_ok()
    assert report.starts == 1
    with pytest.raises(UsageError, match=r"item 'done\.epub' of books has nothing to do: the template has it already"):
        crashtest(plain, item="done.epub", template=template)


@pytest.mark.req("V5")
def test_a_process_that_runs_for_ever_is_ended_with_its_time_and_the_next_one_works(tmp_path: Path, plain: Path):
    plain.write_text(PLAIN.replace("return item.data", "import time; time.sleep(60 if item.data else 0)"))
    url = f"sqlite:///{tmp_path / 'copy.db'}"
    with SubjectServer(str(plain), url, tmp_path, timeout_seconds=1.0) as server:
        server.prepare({"books": [{"key": "slow", "data": 1}]})
        with pytest.raises(UsageError, match="not done within 1 s"):
            server.run()
        server.prepare({"books": [{"key": "slow"}]})
        assert server.run().code == 0
