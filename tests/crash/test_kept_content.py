"""A worker is killed or frozen around `ctx.keep`: no reference is left to what is not there, and nothing half-written."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path

import pytest

from holdfast.points import KEEP_POINTS
from tests.support.kept import content_in, give_a_place, make_old, opened
from tests.support.kept_books import page_of
from tests.support.processes import crew_on, wait_for

pytestmark = [pytest.mark.req("P13", "V2"), pytest.mark.fault(1)]

PAGES = [{"key": f"book-{n}", "page": str(n // 2)} for n in range(6)]


@pytest.fixture
def place(url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    return give_a_place(url, tmp_path, monkeypatch)


@pytest.mark.parametrize("nth", [1, 4])
@pytest.mark.parametrize("point", [*KEEP_POINTS, "run.after", "commit.before", "commit.after"])
def test_wherever_a_worker_is_killed_every_reference_opens_and_every_page_is_whole(
    url: str, tmp_path: Path, place: Path, point: str, nth: int
):
    with crew_on(url, tmp_path, "tests.support.kept_books:kept") as crew:
        crew.add(PAGES)
        victim = crew.start("victim", concurrency=3, crash_at=f"{point}:{nth}")
        assert victim.wait() == -9
        assert crew.app.check() == []
        judge_content(place)
        crew.start("survivor")
        crew.wait_until_done()
        for item in PAGES:
            for stage in ("render", "read"):
                found = crew.app.show(item["key"]).stage(stage)
                assert found.state == "done", crew.all_said()
                assert opened(crew.app, found.result["page"]) == page_of(item["page"])
        crew.stop()
        # What the victim left behind goes once it is old; what is referred to stays.
        make_old(place)
        crew.app.prune()
        assert crew.app.check() == []
        assert content_in(place) == {page_of(str(n)) for n in range(3)} | {f"read book-{n}".encode() for n in range(6)}


def judge_content(place: Path) -> None:
    """Whatever has the name of a hash is complete."""
    for one in place.rglob("*"):
        if one.is_file() and len(one.name) == 64:
            assert hashlib.sha256(one.read_bytes()).hexdigest() == one.name


@pytest.mark.req("V3")
def test_content_of_a_worker_that_lost_its_lease_is_unreferenced_and_nothing_else(
    url: str, tmp_path: Path, place: Path
):
    with crew_on(url, tmp_path, "tests.support.kept_books:signed") as crew:
        gate = crew.gate()
        crew.add([{"key": "x", "gate": str(gate), "waits": 1}])
        late = crew.start("late", far=True)
        wait_for(lambda: content_in(place) == {f"x by {late.pid}".encode()})
        late.freeze()
        crew.start("other")
        crew.wait_until_done()
        reference = crew.app.show("x").stage("sign").result
        its = opened(crew.app, reference)
        assert content_in(place) == {its, f"x by {late.pid}".encode()}
        gate.touch()
        late.thaw()
        crew.stop()
        assert crew.app.show("x").stage("sign").result == reference
        make_old(place)
        assert crew.app.prune()["blobs"] == 1
        assert content_in(place) == {its}


def test_content_that_a_long_attempt_has_kept_outlives_a_collection(url: str, tmp_path: Path, place: Path):
    """It began three days ago, and kept something two days ago."""
    with crew_on(url, tmp_path, "tests.support.kept_books:signed") as crew:
        gate = crew.gate()
        crew.add([{"key": "x", "gate": str(gate), "waits": 1}])
        worker = crew.start("w")
        mine = f"x by {worker.pid}".encode()
        wait_for(lambda: content_in(place) == {mine})
        crew.app.store.write(_begin_earlier(3))
        make_old(place, 2 * 24 * 3600)
        assert crew.app.prune()["blobs"] == 0
        gate.touch()
        crew.wait_until_done()
        assert opened(crew.app, crew.app.show("x").stage("sign").result) == mine


def _begin_earlier(days: int) -> Callable[..., None]:
    def work(tx) -> None:
        table = tx.store.driver.dialect.table("leases")
        tx.store.driver.run_text(f"UPDATE {table} SET since = since - {days * 24 * 3600 * 1_000_000}")

    return work


def test_workers_keep_and_share_content_while_one_collection_after_another_runs(url: str, tmp_path: Path, place: Path):
    """Content of earlier results is old: whoever keeps the same must find it, or make it young, or write it again."""
    with crew_on(url, tmp_path, "tests.support.kept_books:kept") as crew:
        crew.add([{"key": f"old-{n}", "page": str(n)} for n in range(3)])
        crew.start("a", concurrency=2)
        crew.start("b", concurrency=2)
        crew.wait_until_done()
        for _ in range(4):
            # Nothing refers to the pages any more, and they are old, when other items keep the same.
            crew.app.delete(key="old-*")
            make_old(place)
            crew.add([*PAGES, *({"key": f"old-{n}", "page": str(n)} for n in range(3))])
            while not crew.is_done():
                crew.app.prune()
            for item in PAGES:
                page = crew.app.show(item["key"]).stage("read").result["page"]
                assert opened(crew.app, page) == page_of(item["page"]), crew.all_said()
            assert crew.app.check() == []
            crew.app.delete(key="book-*")
        assert {one.state for key in ("old-0", "old-1", "old-2") for one in crew.app.show(key).stages} == {"done"}
