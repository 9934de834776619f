"""What refers to kept content: everything that is stored keeps it, and what nothing refers to goes after a day."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from holdfast import Context, Holdfast, Item, Pipeline, Rejected
from holdfast.engine import collect_blobs
from holdfast.worker import Settings
from tests.support.bench import QUICK
from tests.support.kept import content_in, give_a_place, make_old, opened
from tests.support.together import held_at, listening, wait_for

pytestmark = pytest.mark.req("P13")

Work = Callable[[Item, Context], Any]


class Scene:
    """A pipeline with one stage, whose handler a test may replace."""

    def __init__(self, url: str, place: Path) -> None:
        self.place = place
        self.work: Work = lambda item, ctx: None
        self.pipeline = Pipeline("p")

        @self.pipeline.stage(name="a", max_attempts=2, backoff=QUICK)
        def a(item: Item, ctx: Context) -> Any:
            return self.work(item, ctx)

        self.app = Holdfast(url, [self.pipeline.spec])

    def run(self, work: Work, *items: Any) -> None:
        self.work = work
        self.app.add("p", items)
        self.app.run(Settings(poll_seconds=0.1, grace_seconds=0.2))

    def prune(self) -> set[bytes]:
        """What is left after a collection, if all of it is old."""
        make_old(self.place)
        count = self.app.prune()["blobs"]
        assert count == 0 or self.app.check() == []
        return content_in(self.place)


@pytest.fixture
def scene(url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Scene]:
    scene = Scene(url, give_a_place(url, tmp_path, monkeypatch))
    yield scene
    scene.app.close()


def test_a_result_keeps_content_until_a_rerun_replaces_it(scene: Scene) -> None:
    scene.run(lambda item, ctx: {"page": ctx.keep(b"one")}, "x")
    assert scene.prune() == {b"one"}
    scene.app.reprocess("p", stale_only=False)
    assert scene.prune() == {b"one"}, "the result stands until it is replaced"
    scene.run(lambda item, ctx: {"page": ctx.keep(b"two")})
    assert scene.prune() == {b"two"}


def test_a_result_that_mentions_a_hash_keeps_content_too(scene: Scene) -> None:
    scene.run(lambda item, ctx: f"see {ctx.keep(b'one').id} and {ctx.keep(b'two').id}", "x")
    assert scene.prune() == {b"one", b"two"}


@pytest.mark.parametrize("how", ["delete", "prune"])
def test_content_goes_with_the_item_that_refers_to_it(scene: Scene, how: str) -> None:
    scene.run(lambda item, ctx: ctx.keep(item.key.encode()), "x", "y")
    scene.app.cancel(key="y")
    if how == "delete":
        scene.app.delete(key="x")
        assert scene.prune() == {b"y"}
    else:
        make_old(scene.place)
        assert scene.app.prune(items_older_than=0, dry_run=True) == {"events": 0, "items": 2, "blobs": 0}
        assert scene.app.prune(items_older_than=0)["blobs"] == 2


def test_the_data_of_an_item_keeps_content(scene: Scene) -> None:
    def work(item: Item, ctx: Context) -> Any:
        if item.key == "x":
            ctx.submit("p", "y", {"page": ctx.keep(b"data")})

    scene.run(work, "x")
    scene.app.delete(key="x")
    assert scene.prune() == {b"data"}
    scene.app.delete(key="y")
    assert scene.prune() == set()


def test_a_memo_keeps_content_while_its_stage_is_open_and_so_does_a_rejected_answer(scene: Scene) -> None:
    def fail(item: Item, ctx: Context) -> Any:
        ctx.once("render", lambda: ctx.keep(b"memo"), cost="0.10")
        raise RuntimeError("no")

    scene.run(fail, "x")
    assert scene.app.show("x").stage("a").state == "exhausted"
    assert scene.prune() == {b"memo"}

    def reject(answer: Any) -> None:
        raise Rejected("too short")

    def paid(item: Item, ctx: Context) -> Any:
        return ctx.once("paid", lambda: ctx.keep(b"rejected"), cost="0.10", validate=reject)

    scene.run(paid, "y")
    assert scene.prune() == {b"memo", b"rejected"}
    # Forgotten, and taken back: the answer is somewhere all the time.
    scene.app.forget(key="x")
    assert scene.prune() == {b"memo", b"rejected"}
    scene.app.forget(key="x", undo=True)
    assert scene.prune() == {b"memo", b"rejected"}
    scene.app.delete(key="*")
    assert scene.prune() == set()


def test_an_event_keeps_content_until_it_is_forgotten(scene: Scene) -> None:
    scene.run(lambda item, ctx: ctx.event("user.seen", page=ctx.keep(b"event")), "x")
    assert scene.prune() == {b"event"}
    scene.app.prune(events_older_than=0)
    assert scene.prune() == set()


def test_what_nothing_refers_to_stays_for_a_day(scene: Scene) -> None:
    scene.run(lambda item, ctx: ctx.keep(b"x") and None, "x")
    make_old(scene.place, 23 * 3600)
    assert scene.app.prune()["blobs"] == 0
    make_old(scene.place, 25 * 3600)
    assert scene.app.prune(dry_run=True)["blobs"] == 1
    assert content_in(scene.place) == {b"x"}
    assert scene.app.prune()["blobs"] == 1
    assert content_in(scene.place) == set()


def test_more_than_one_reading_finds_the_same(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(collect_blobs, "CANDIDATES", 3)
    monkeypatch.setattr(collect_blobs, "STRETCH", 2)

    def work(item: Item, ctx: Context) -> Any:
        ctx.keep(f"unreferenced {item.key}".encode())
        return ctx.keep(item.key.encode())

    scene.run(work, *(str(n) for n in range(10)))
    assert scene.prune() == {str(n).encode() for n in range(10)}


def test_content_that_is_kept_again_while_a_collection_reads_stays(scene: Scene) -> None:
    """The collection has not seen the new reference, but the content is young when its turn comes."""
    scene.run(lambda item, ctx: ctx.keep(b"page"), "x")
    scene.app.delete(key="x")
    make_old(scene.place)
    done = threading.Event()
    with held_at("store.numbers_of_items", done.is_set) as reading:
        counts: list[dict[str, int]] = []
        collector = threading.Thread(target=lambda: counts.append(scene.app.prune()))
        collector.start()
        wait_for(reading.is_set)
        with Holdfast(scene.app.url, [scene.pipeline.spec]) as other:
            scene.work = lambda item, ctx: ctx.keep(b"page")
            other.add("p", ["y"])
            other.run(Settings(poll_seconds=0.1, grace_seconds=0.2))
        done.set()
        collector.join()
    assert counts == [{"events": 0, "items": 0, "blobs": 0}]
    assert opened(scene.app, scene.app.show("y").stage("a").result) == b"page"


def test_a_store_without_blobs_is_not_read(scene: Scene) -> None:
    scene.run(lambda item, ctx: {"see": "sha256:" + "0" * 64}, "x")
    asked: list[str] = []
    with listening(asked.append):
        assert scene.app.prune() == {"events": 0, "items": 0, "blobs": 0}
    assert not [point for point in asked if point.startswith("store.hashes_in")]


def test_a_check_names_references_whose_content_is_missing(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    scene.run(lambda item, ctx: {"page": ctx.keep(item.key.encode())}, *(str(n) for n in range(30)))
    assert scene.app.check() == []
    reference = scene.app.show("7").stage("a").result["page"]
    scene.app.blob(reference).path.unlink()
    [wrong] = scene.app.check()
    assert wrong.startswith("outcomes ") and f"refers to {reference['$blob']}, which is not at " in wrong
    for one in scene.place.rglob("*"):
        if len(one.name) == 64:
            one.unlink()
    assert len(scene.app.check()) == collect_blobs.NAMED
    monkeypatch.setattr(type(scene.app._blobs), "most_looks", 5)
    assert len(scene.app.check()) == 5
