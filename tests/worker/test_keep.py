"""`ctx.keep`: content outside of the database, with a reference in whatever a handler hands over."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
import time
from pathlib import Path
from typing import Any

import msgspec
import pydantic
import pytest

from holdfast import BatchContext, Blob, Context, Holdfast, Item, Pipeline
from holdfast.blobs.blobs import GRACE_SECONDS
from tests.support.bench import QUICK, Bench
from tests.support.kept import content_in, give_a_place, make_old, opened

pytestmark = pytest.mark.req("P13")

PAGE = b"\x89PNG" + bytes(range(256)) * 100


@pytest.fixture(autouse=True)
def place(url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    return give_a_place(url, tmp_path, monkeypatch)


@pytest.mark.parametrize("isolate", [None, "process"])
def test_a_result_carries_a_reference_that_opens_as_a_file(run: Bench, place: Path, isolate: Any) -> None:
    p = Pipeline("p")

    @p.stage(isolate=isolate)
    def render(item: Item, ctx: Context) -> Any:
        page = ctx.keep(PAGE, name="page.png")
        assert page.read() == PAGE and page.path.is_file()
        return {"page": page, "pages": [page]}

    @p.stage(after=render, isolate=isolate)
    def measure(item: Item, ctx: Context) -> Any:
        found = ctx.result(render)
        assert found["pages"] == [found["page"]] and isinstance(found["page"], dict)
        with ctx.blob(found["page"]).open() as file:
            return {"head": file.read(4).decode("latin-1"), "same": found["page"]}

    ran = run(p, ["x"])
    assert ran.result("x", "measure")["head"] == "\x89PNG"
    reference = ran.result("x", "render")["page"]
    assert reference.keys() == {"$blob", "size", "name", "type"} and reference["type"] == "image/png"
    assert opened(ran.app, reference) == opened(ran.app, ran.result("x", "measure")["same"]) == PAGE
    assert content_in(place) == {PAGE}


def test_a_memo_an_event_and_a_follow_on_carry_it_too(run: Bench, place: Path) -> None:
    p = Pipeline("p")
    seen: list[Any] = []

    @p.stage(backoff=QUICK)
    def render(item: Item, ctx: Context) -> Any:
        if "page" in item.data:
            return {"read": ctx.blob(item.data["page"]).read().decode()}
        page = ctx.once("render", lambda: {"page": ctx.keep(b"memo")})
        seen.append(page)
        if ctx.attempt == 1:
            raise RuntimeError("again")
        ctx.event("user.kept", page=ctx.keep(b"event"))
        ctx.submit("p", "y", {"page": ctx.keep(b"follow-on")})
        return {"read": ctx.blob(page["page"]).read().decode()}

    ran = run(p, ["x"])
    assert seen[0] == seen[1] and len(seen) == 2
    assert ran.result("x", "render") == {"read": "memo"}
    assert ran.result("y", "render") == {"read": "follow-on"}
    [event] = ran.events("user.kept")
    assert opened(ran.app, event.data["page"]) == b"event"
    # The memo is gone with its stage: nothing refers to its content.
    make_old(place)
    assert ran.app.prune() == {"events": 0, "items": 0, "blobs": 1}
    assert content_in(place) == {b"event", b"follow-on"}
    assert ran.app.check() == []


def test_an_async_handler_awaits_it_and_its_loop_goes_on(run: Bench) -> None:
    p, turning = Pipeline("p"), threading.Event()

    class Slow:
        def __init__(self) -> None:
            self.left = [b"slow ", b"page"]

        def read(self, size: int) -> bytes:
            assert turning.wait(20), "the loop stands still while content is kept"
            return self.left.pop(0) if self.left else b""

    @p.stage()
    async def render(item: Item, ctx: Context) -> Any:
        asyncio.get_running_loop().call_later(0.01, turning.set)
        return await ctx.keep(Slow())  # type: ignore[arg-type]

    ran = run(p, ["x"])
    assert opened(ran.app, ran.result("x", "render")) == b"slow page"


class Rendered(msgspec.Struct):
    page: Blob


@pytest.mark.parametrize("parse", [Blob, Rendered])
def test_references_in_a_parsed_answer_open_at_once(run: Bench, parse: Any) -> None:
    """The first time, and from the record."""
    p = Pipeline("p")
    attempts: list[bytes] = []

    @p.stage(max_attempts=2, backoff=QUICK)
    def render(item: Item, ctx: Context) -> Any:
        def ask() -> Any:
            page = ctx.keep(PAGE)
            return page if parse is Blob else {"page": page}

        answer = ctx.options(cost="0.01", parse=parse).call("render", ask)
        attempts.append((answer if parse is Blob else answer.page).read())
        if len(attempts) == 1:
            raise RuntimeError("again")
        return "done"

    assert run(p, ["x"]).result("x", "render") == "done"
    assert attempts == [PAGE, PAGE]


def test_each_item_of_a_batch_keeps_for_itself(run: Bench) -> None:
    p = Pipeline("p")

    @p.stage(batch=3)
    def render(items: list[Item], ctx: BatchContext) -> Any:
        return [ctx.of(one).keep(one.key.encode()) for one in items]

    ran = run(p, ["a", "b", "c"])
    assert [opened(ran.app, ran.result(key, "render")) for key in "abc"] == [b"a", b"b", b"c"]


def test_equal_content_makes_an_equal_result_and_stops_the_wave(run: Bench) -> None:
    p, ran_again = Pipeline("p"), []

    @p.stage()
    def render(item: Item, ctx: Context) -> Any:
        return {"page": ctx.keep(PAGE, name="a.png")}

    @p.stage(after=render)
    def measure(item: Item, ctx: Context) -> Any:
        ran_again.append(item.key)

    app = run(p, ["x"]).app
    app.reprocess("p", stage="render", stale_only=False)
    run(p)
    assert ran_again == ["x"]


def test_a_process_that_dies_after_it_has_kept_something_keeps_it_again(run: Bench, place: Path) -> None:
    p = Pipeline("p")

    @p.stage(isolate="process", backoff=QUICK)
    def render(item: Item, ctx: Context) -> Any:
        page = ctx.keep(PAGE)
        if ctx.attempt == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        return page

    ran = run(p, ["x"])
    assert (ran.state("x", "render"), ran.stage("x", "render").attempts) == ("done", 2)
    assert opened(ran.app, ran.result("x", "render")) == PAGE
    assert content_in(place) == {PAGE}


# What is not there, and what is not ours ------------------------------------------------------------------------------


def test_a_result_cannot_refer_to_content_that_is_not_there(run: Bench) -> None:
    p = Pipeline("p")

    @p.stage(max_attempts=2, backoff=QUICK)
    def render(item: Item, ctx: Context) -> Any:
        if item.key == "submits":
            ctx.submit("p", "y", {"page": Blob("sha256:" + "0" * 64, 1)})
            return None
        return {"page": {"$blob": "sha256:" + "0" * 64, "size": 1}}

    ran = run(p, ["returns", "submits"])
    for key in ("returns", "submits"):
        found = ran.stage(key, "render")
        assert (found.state, found.attempts) == ("exhausted", 2)
        assert "BlobMissing: it refers to sha256:000" in str(found.error)
    assert {one.key for one in ran.app.items()} == {"returns", "submits"}


def test_one_item_of_a_batch_that_refers_to_nothing_fails_alone(run: Bench) -> None:
    p = Pipeline("p")

    @p.stage(batch=2, max_attempts=1)
    def render(items: list[Item], ctx: BatchContext) -> Any:
        return [
            {"$blob": "sha256:" + "0" * 64, "size": 1} if one.key == "bad" else ctx.of(one).keep(PAGE) for one in items
        ]

    ran = run(p, ["bad", "good"])
    assert (ran.state("bad", "render"), ran.state("good", "render")) == ("exhausted", "done")


def test_hostile_references_in_data_are_data_and_open_nothing(run: Bench) -> None:
    p = Pipeline("p")

    @p.stage(max_attempts=1)
    def render(item: Item, ctx: Context) -> Any:
        if item.key == "opens":
            return ctx.blob(item.data["page"]).read()
        return item.data

    hostile = {"$blob": "../../../../etc/passwd", "size": 1, "name": "../x"}
    ran = run(p, [{"key": "opens", "page": hostile}, {"key": "passes", "page": hostile}])
    assert ran.state("opens", "render") == "exhausted"
    assert "UsageError" in str(ran.stage("opens", "render").error)
    assert ran.result("passes", "render")["page"] == hostile


def test_a_reference_that_is_passed_on_protects_its_content_from_a_collection(run: Bench, place: Path) -> None:
    """The result it comes from may be replaced before the attempt that passes it on commits."""
    p = Pipeline("p")

    @p.stage()
    def render(item: Item, ctx: Context) -> Any:
        return {"page": ctx.keep(PAGE)}

    @p.stage(after=render)
    def pass_on(item: Item, ctx: Context) -> Any:
        return ctx.result(render)

    app = run(p, ["x"]).app
    make_old(place)
    app.reprocess("p", stage="pass_on", stale_only=False)
    assert len(list(app._blobs.older_than(time.time() - GRACE_SECONDS))) == 1
    run(p)
    assert list(app._blobs.older_than(time.time() - GRACE_SECONDS)) == []


def test_without_a_place_an_attempt_fails_and_says_where_to_name_one(
    run: Bench, monkeypatch: pytest.MonkeyPatch, database: str
) -> None:
    monkeypatch.delenv("HOLDFAST_BLOBS", raising=False)
    p = Pipeline("p")

    @p.stage(max_attempts=1)
    def render(item: Item, ctx: Context) -> Any:
        return ctx.keep(PAGE)

    ran = run(p, ["x"])
    if database == "sqlite":
        assert opened(ran.app, ran.result("x", "render")) == PAGE
    else:
        assert "a store on PostgreSQL has no folder for blobs" in str(ran.stage("x", "render").error)


def test_a_full_disk_spends_no_attempt(run: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    p, sync, full = Pipeline("p"), os.fsync, [True]

    def fsync(number: int) -> None:
        if full:
            full.pop()
            raise OSError(28, "No space left on device")
        sync(number)

    @p.stage(max_attempts=1)
    def render(item: Item, ctx: Context) -> Any:
        with monkeypatch.context() as patch:
            patch.setattr(os, "fsync", fsync)
            return ctx.keep(PAGE)

    ran = run(p, ["x"])
    assert (ran.state("x", "render"), ran.stage("x", "render").attempts) == ("done", 1)


# Where it is said -----------------------------------------------------------------------------------------------------


def test_a_pipeline_names_the_place(url: str, tmp_path: Path) -> None:
    p = Pipeline("p", store=url, blobs=str(tmp_path / "mine"))

    @p.stage()
    def render(item: Item, ctx: Context) -> Any:
        return ctx.keep(PAGE)

    p.add(["x"])
    p.run()
    assert content_in(tmp_path / "mine") == {PAGE}
    with Holdfast(url, blobs=str(tmp_path / "mine")) as app:
        assert opened(app, app.show("x").stage("render").result) == PAGE
        assert app.check() == []
        make_old(tmp_path / "mine")
        assert app.prune()["blobs"] == 0


@pytest.mark.parametrize("isolate", [None, "process"])
def test_fsspec_keeps_it_elsewhere(url: str, tmp_path: Path, isolate: Any) -> None:
    at = f"simplecache::file://{tmp_path}/far"
    p = Pipeline("p", store=url, blobs=at)

    @p.stage(isolate=isolate)
    def render(item: Item, ctx: Context) -> Any:
        return ctx.keep(PAGE)

    p.add(["x"])
    p.run()
    with Holdfast(url, blobs=at) as app:
        assert opened(app, app.show("x").stage("render").result) == PAGE


@pytest.mark.parametrize("holdfast_store", ["sqlite"], indirect=True)
def test_a_users_test_keeps_nothing_in_the_real_place(
    holdfast_store: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOLDFAST_BLOBS", str(tmp_path / "real"))
    p = Pipeline("p", blobs=str(tmp_path / "also real"))

    @p.stage()
    def render(item: Item, ctx: Context) -> Any:
        return ctx.keep(PAGE)

    app = holdfast_store.open(p)
    app.add("p", ["x"])
    app.run()
    assert opened(app, app.show("x").stage("render").result) == PAGE
    assert not list(tmp_path.glob("*real"))


class Scan(pydantic.BaseModel):
    page: Blob
    others: list[Blob] = []


class Bound(msgspec.Struct):
    scans: dict[str, Scan]
    cover: Blob | None = None


@pytest.mark.parametrize("isolate", [None, "process"])
def test_references_in_typed_values_open_at_once(run: Bench, isolate: Any) -> None:
    """However deep they are in an instance of pydantic, msgspec or a dataclass, in results and in items' data."""
    p: Pipeline[Any] = Pipeline("p")
    later: Pipeline[Scan] = Pipeline("later", data=Scan)

    @p.stage(isolate=isolate)
    def scan(item: Item, ctx: Context) -> Bound:
        page = ctx.keep(PAGE, name="page.png")
        return Bound({"one": Scan(page=page, others=[page])}, page)

    @p.stage(after=scan, isolate=isolate)
    async def read(item: Item, ctx: Context) -> list[int]:
        bound = ctx.result(scan)
        assert bound.cover is not None
        one = bound.scans["one"]
        return [len(blob.read()) for blob in (bound.cover, one.page, *one.others)]

    @later.stage(isolate=isolate)
    def measure(item: Item[Scan], ctx: Context) -> int:
        return len(item.data.page.read())

    ran = run(p, ["x"])
    assert ran.result("x", "read") == [len(PAGE)] * 3
    page = ran.result("x", "scan")["cover"]
    with run.app(later) as app:
        app.add("later", [{"key": "y", "page": page}])
    assert run(later).app.show("y", "later").stage("measure").result == len(PAGE)
