"""examples.documents undisturbed: where a document is, what it costs, when it is ready, and what follows."""

from __future__ import annotations

import json
import logging
import re
import threading
import time
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.exc import IntegrityError

from examples.documents import pipeline as example
from examples.documents.chunking import chunk_id
from examples.documents.demo import violations
from examples.documents.fakes.fake_library import BOOK_OF_61, write_book_of
from examples.documents.pipeline import CONNECTIONS, DOCUMENTS
from examples.documents.search import search
from examples.documents.settings import TIMEOUTS, Settings
from examples.documents.stages import where_is
from examples.documents.tables import chunks, documents, embedded, links, save_chunks, save_connections
from holdfast import Holdfast, Permanent, Pipeline, store_engine
from tests.examples.documents_scene import BOOKS, Scene
from tests.support.harness import App
from tests.support.processes import wait_for

MINUTE = 60.0
WORDS = ["extracted", "markdown_saved", "chunked", "embedded"]
FACTS = ("why", "kept", "gone", "new")
FIRST = ("documents/extract", "documents/save_markdown", "documents/chunk")


def run(scene: Scene, *stages: str) -> None:
    """A worker that offers these stages only."""
    scene.app.run(scene.application.settings.worker(poll_seconds=0.1, grace_seconds=0.0, stages=stages))


@pytest.mark.req("D3", "D5", "D7", "D10")
def test_a_run_without_trouble_leaves_every_document_complete_and_paid_once(scene, undisturbed):
    assert where_is(scene.app, BOOK_OF_61).stage == "pending"
    started = time.time()
    run(scene, *FIRST, "documents/embed")
    for key in BOOKS:
        where = where_is(scene.app, key)
        assert (where.stage, where.ready, list(where.completed)) == ("embedded", True, WORDS)
        assert started - 1 <= min(where.completed.values()) <= max(where.completed.values()) <= time.time() + 1
        assert list(where.completed.values()) == sorted(where.completed.values())
        assert all(took >= 0 for took in where.took.values())
        assert (where.finding_connections, where.message) == (True, "ready, finding connections…")
    # Ready, and their connections wait as items of their own: one for each.
    assert sorted(row.key for row in scene.app.items(pipeline=CONNECTIONS, state="pending")) == sorted(BOOKS)
    run(scene, "connections/connect")
    found = [where_is(scene.app, key) for key in BOOKS]
    assert {(one.stage, one.finding_connections, one.message) for one in found} == {("complete", False, "ready")}
    assert scene.chunks(BOOK_OF_61) == [(chunk_id(BOOK_OF_61, n), n) for n in range(61)]
    scene.judge(undisturbed)


@pytest.mark.req("D3", "D10")
def test_a_long_book_tells_its_page_while_the_model_is_at_work(scene_on, model):
    model.fail_every = model.limit_every = 0
    model.page_seconds = 0.05
    scene = scene_on(stale="0.6s")
    scene.app.add(DOCUMENTS, [{"key": BOOK_OF_61, "path": str(scene.books / BOOK_OF_61)}])
    with Holdfast(scene.url) as reader:
        worker = threading.Thread(target=scene.run)
        worker.start()
        seen = wait_for(lambda: (where := where_is(reader, BOOK_OF_61)).progress.startswith("page ") and where)
        model.page_seconds = 0.0
        worker.join()
    assert seen.stage == "extracting"
    page, total = (int(word) for word in seen.progress.split()[1::2])
    assert 1 <= page <= total == 39


def test_the_markdown_of_a_book_is_kept_outside_of_the_database_and_its_result_refers_to_it(scene):
    run(scene, *FIRST)
    with store_engine(scene.url).connect() as connection:
        saved = dict(map(tuple, connection.execute(sa.select(documents.c.key, documents.c.markdown))))
    assert saved.keys() == set(BOOKS)
    for one in scene.application.documents.results(scene.application.extract):
        kept = scene.app.blob(one.result.markdown)
        assert (kept.name, kept.type) == (f"{one.key.partition('.')[0]}.md", "text/markdown")
        assert kept.read().decode() == saved[one.key]
    stored = scene.app.show(BOOK_OF_61, DOCUMENTS).stage("extract").result
    assert len(str(stored)) < 400 < len(saved[BOOK_OF_61])


@pytest.mark.req("D4", "D10")
@pytest.mark.parametrize(
    ("body", "error"),
    [
        ({"message": "there is no such model"}, "BadRequest.*there is no such model"),
        ({"code": "context_length_exceeded", "message": "a long book"}, "InputTooLong.*a long book"),
    ],
)
def test_what_the_model_refuses_fails_at_once_with_its_words_and_is_free(scene, monkeypatch, body, error):
    def refuse(handler: Any, *_: object) -> None:
        text = json.dumps({"error": body}).encode()
        handler.send_response(400)
        handler.send_header("Content-Length", str(len(text)))
        handler.end_headers()
        handler.wfile.write(text)

    monkeypatch.setattr("examples.documents.fakes.fake_model._Handler.do_POST", refuse)
    scene.run()
    shown = scene.app.show(BOOK_OF_61, DOCUMENTS).stage("extract")
    assert (shown.state, shown.attempts) == ("failed", 1)
    assert re.search(error, shown.error)
    assert scene.app.costs(["item"]).total.costs == 0 and not scene.doubts()


@pytest.mark.req("D3", "D7")
def test_a_document_whose_connections_cannot_be_found_is_ready_and_says_why(scene, monkeypatch):
    def broken(*_: object) -> None:
        raise Permanent("the index is gone")

    run(scene, *FIRST, "documents/embed")
    monkeypatch.setattr("examples.documents.pipeline.connections", broken)
    run(scene, "connections/connect")
    where = where_is(scene.app, BOOK_OF_61)
    assert (where.stage, where.ready, where.finding_connections) == ("embedded", True, False)
    assert (
        where.message.startswith("ready, but its connections were not found: ") and "the index is gone" in where.message
    )


@pytest.mark.req("D3")
def test_a_broken_file_fails_with_its_reason_and_nothing_is_paid_for_it(scene_on, tmp_path, model):
    folder = tmp_path / "odd"
    folder.mkdir()
    (folder / "half.epub").write_bytes(b"PK\x03\x04 and nothing more")
    scene = scene_on(books=folder)
    scene.add()
    scene.run()
    where = where_is(scene.app, "half.epub")
    assert where.stage == "failed" and "no EPUB" in where.error
    assert not model.ledger.exists()


@pytest.mark.req("D2")
@pytest.mark.parametrize(("silent", "alive"), [(29 * MINUTE, True), (31 * MINUTE, False)])
def test_a_worker_of_this_example_may_be_silent_for_29_minutes_and_not_for_31(store, clock, silent, alive):
    app = App(store, clock)
    app.pipeline({"extract": []})
    app.add(["book"])
    app.join("w", lease_seconds=Settings.read({}).worker().lease_seconds)
    app.claim("w")
    clock.advance(20 * MINUTE)
    assert app.beat("w")
    clock.advance(silent)
    assert (app.reap().released == 0) is alive


@pytest.mark.req("D2", "D10")
def test_thresholds_are_settings_and_every_stage_has_its_own(scene):
    assert Settings.read({"DOCUMENTS_STALE": "10m"}).worker().lease_seconds == 10 * MINUTE
    stages = {one.name: one.timeout_seconds for spec in scene.app.pipelines for one in spec.stages}
    assert stages == {"extract": 1800, "save_markdown": 60, "chunk": 300, "embed": 900, "connect": 900}
    assert stages.keys() == TIMEOUTS.keys()


def told(scene: Scene, name: str) -> list[dict[str, Any]]:
    """What the events of this name say of the book of 61 chunks."""
    events = scene.app.events(event=f"user.{name}", pipeline=DOCUMENTS, most=1000)
    return [{fact: event.data[fact] for fact in FACTS} for event in events if event.item == BOOK_OF_61]


# Chunks ---------------------------------------------------------------------------------------------------------------


@pytest.mark.req("D5")
def test_a_fresh_run_replaces_the_41_chunks_that_an_older_program_left(scene, undisturbed, caplog):
    scene.execute(documents.insert().values(key=BOOK_OF_61, title="left behind"))
    left = [{"id": f"old-{n}", "document": BOOK_OF_61, "chunk_index": n, "text": f"text {n}"} for n in range(41)]
    scene.execute(chunks.insert().values(left))
    scene.execute(links.insert().values(from_chunk="old-1", to_chunk="old-2", similarity=0.9))
    with caplog.at_level(logging.INFO, "holdfast.stage.documents.chunk"):
        scene.run()
    scene.judge(undisturbed)
    why = "41 of 41 are not what the text comes to, which has 61"
    assert told(scene, "chunks_replaced") == [{"why": why, "kept": 0, "gone": 41, "new": 61}]
    assert f"[{BOOK_OF_61} chunk #1] chunks replaced: {why}" in caplog.messages
    assert not told(scene, "chunks_made") and not told(scene, "chunks_kept")


@pytest.mark.req("D5")
def test_a_document_that_is_run_again_and_is_the_same_keeps_chunks_vectors_and_connections(scene, undisturbed):
    scene.run()
    assert told(scene, "chunks_made") == [{"why": "there were none", "kept": 0, "gone": 0, "new": 61}]
    scene.app.retry(pipeline=DOCUMENTS, stage="chunk", states=["done"])
    scene.run()
    assert scene.rows() == undisturbed
    assert told(scene, "chunks_kept") == [{"why": "they are what the text comes to", "kept": 61, "gone": 0, "new": 0}]


@pytest.mark.req("D4", "D5")
def test_a_run_that_goes_on_after_the_chunks_keeps_them_and_says_why(scene, undisturbed, monkeypatch):
    def broken(texts: object) -> None:
        monkeypatch.undo()
        raise ConnectionError("the machine that embeds is gone")

    run(scene, *FIRST)
    before = scene.chunks(BOOK_OF_61)
    monkeypatch.setattr("examples.documents.pipeline.embed", broken)
    scene.run()
    assert scene.chunks(BOOK_OF_61) == before
    kept = [event.data["why"] for event in scene.app.events(event="user.chunks_kept", pipeline=DOCUMENTS)]
    assert set(kept) == {"the stage that made them is done, and attempt 2 goes on after it"}
    scene.judge(undisturbed)
    assert max(scene.paid().values()) == 1


@pytest.mark.req("D5", "D6")
def test_a_shorter_edition_takes_its_chunks_and_their_connections_along(scene_on, books, tmp_path):
    scene, shorter = edition_on(scene_on, books, tmp_path)
    scene.run()
    assert len(scene.chunks(BOOK_OF_61)) == 61
    shorter()
    scene.run()
    assert scene.chunks(BOOK_OF_61) == [(chunk_id(BOOK_OF_61, n), n) for n in range(23)]
    assert violations(scene.url) == []
    assert where_is(scene.app, BOOK_OF_61).stage == "complete"


def test_the_database_itself_refuses_a_connection_to_a_chunk_that_is_not_there(scene):
    """In effects, too: on holdfast's own connection."""

    def wrong(connection: sa.Connection) -> None:
        connection.execute(links.insert().values(from_chunk="nowhere", to_chunk="never", similarity=1.0))

    with pytest.raises(IntegrityError), store_engine(scene.url).begin() as connection:
        wrong(connection)
    bad = Pipeline("bad", store=scene.url)
    bad.stage(name="only", max_attempts=1)(lambda item, ctx: ctx.effect(wrong))
    bad.add(["x"])
    assert bad.run().failed == 1
    assert "IntegrityError" in scene.app.show("x", "bad").stages[0].error


@pytest.mark.req("D8")
def test_jobs_stored_before_there_were_stages_start_at_pending_and_simply_run(scene_on, undisturbed):
    """By a program with one stage that did it all, whose items say no more than their key."""
    scene = scene_on()
    old = Pipeline(DOCUMENTS, store=scene.url)
    old.stage(name="process_document")(lambda item, ctx: None)
    old.add(BOOKS)
    today = scene_on()
    assert {where_is(today.app, key).stage for key in BOOKS} == {"pending"}
    today.run()
    today.judge(undisturbed)


# Connections ----------------------------------------------------------------------------------------------------------


def edition_on(scene_on, books, tmp_path):
    """A scene whose book of 61 chunks can be replaced by a shorter edition, and sent through again."""
    folder = tmp_path / "editions"
    folder.mkdir()
    for name in BOOKS:
        (folder / name).write_bytes((books / name).read_bytes())
    scene = scene_on(books=folder)
    scene.add()

    def shorter() -> None:
        write_book_of(23, folder / BOOK_OF_61)
        scene.app.retry(pipeline=DOCUMENTS, stage="extract", key=BOOK_OF_61, states=["done"])

    return scene, shorter


@pytest.mark.req("D6", "D7")
@pytest.mark.parametrize("until", ["chunked", "embedded"])
def test_a_document_processed_anew_while_connections_are_computed_violates_no_foreign_key(
    scene_on, books, tmp_path, monkeypatch, until
):
    scene, shorter = edition_on(scene_on, books, tmp_path)
    run(scene, *FIRST, "documents/embed")
    computing, go_on = threading.Semaphore(0), threading.Event()
    real = example.connections

    def held(key, own, others):
        found = real(key, own, others)
        computing.release()
        assert go_on.wait(30)
        return found

    monkeypatch.setattr(example, "connections", held)
    linker = scene_on(books=scene.books)
    thread = threading.Thread(target=run, args=(linker, "connections/connect"), daemon=True)
    thread.start()
    for _ in BOOKS:
        assert computing.acquire(timeout=30)
    # All three have computed with the 61 chunks, of which 38 go now.
    shorter()
    run(scene, *FIRST, *(["documents/embed"] if until == "embedded" else []))
    assert len(scene.chunks(BOOK_OF_61)) == 23
    assert len(scene.app.items(pipeline=CONNECTIONS)) == len(BOOKS)
    go_on.set()
    thread.join(60)
    scene.run()

    assert scene.is_done() and scene.app.check() == []
    assert violations(scene.url) == []
    assert scene.app.events(event="attempt_failed", pipeline=CONNECTIONS) == ()
    told = scene.app.events(event="snoozed", pipeline=CONNECTIONS)
    assert [event.item for event in told] == [BOOK_OF_61]
    # And they are what a run of the shorter edition alone comes to.
    found = scene.rows()
    scene.begin_anew()
    scene.run()
    assert found == scene.rows()


@pytest.mark.req("D6")
@pytest.mark.parametrize("database", ["postgres"])
def test_connections_wait_for_whoever_is_replacing_chunks_and_then_leave_them_alone(scene):
    """Between the look at a document and the insert nobody can take its chunks away. On SQLite there is one writer anyway."""
    run(scene, *FIRST, "documents/embed")
    revisions, found = embedded(scene.url)
    key = "bees.epub"
    to_the_last = [(found[key].ids[0], found[BOOK_OF_61].ids[-1], 0.9)]
    ended = []

    def connect() -> None:
        with store_engine(scene.url).begin() as connection:
            ended.append(connection.execute(sa.select(sa.func.pg_backend_pid())).scalar_one())
            save_connections(connection, key, revisions, to_the_last)
        ended.append("committed")

    thread = threading.Thread(target=connect, daemon=True)
    with store_engine(scene.url).begin() as replacing, store_engine(scene.url).connect() as watching:
        save_chunks(replacing, BOOK_OF_61, ["all that is left"])
        thread.start()
        wait_for(lambda: ended)
        blocked = sa.text("SELECT cardinality(pg_blocking_pids(:pid))")
        wait_for(lambda: watching.execute(blocked, {"pid": ended[0]}).scalar_one())
    thread.join(30)
    assert ended[1:] == ["committed"]
    assert violations(scene.url) == []
    assert scene.rows()["connections"] == []


def test_a_search_finds_what_a_person_would_look_for(scene):
    scene.run()
    for words, document in (
        ("honey and wax in the hive", "bees.epub"),
        ("boiling brine to get salt", "salt.html"),
        ("crossing a glacier with ropes", BOOK_OF_61),
    ):
        hits = search(scene.url, words, 3)
        assert {hit.document for hit in hits} == {document}
        assert [hit.similarity for hit in hits] == sorted((hit.similarity for hit in hits), reverse=True)
