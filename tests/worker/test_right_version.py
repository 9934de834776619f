"""Work that is to be done again by a new version waits for a worker that has it."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from holdfast import Context, Item, Permanent, Pipeline
from tests.support.bench import QUICK, Bench
from tests.support.money import charged
from tests.support.processes import wait_for

pytestmark = pytest.mark.req("P4")

KEYS = [f"book-{number}" for number in range(30)]


class Bill:
    """Which version paid for which item."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.paid: list[tuple[str, str]] = []

    def pay(self, version: str, key: str) -> str:
        with self._lock:
            self.paid.append((version, key))
        return f"{key} by {version}"

    def by_version(self) -> Counter[str]:
        return Counter(version for version, _ in self.paid)


@pytest.fixture
def bill() -> Bill:
    return Bill()


@pytest.fixture
def books(bill: Bill) -> Callable[..., Pipeline]:
    """The pipeline as deployed with a version."""

    def make(version: str, **settings: Any) -> Pipeline:
        pipeline = Pipeline("books", resources={"model": {}})

        @pipeline.stage(name="read", version=version, backoff=QUICK, **settings)
        def read(item: Item, ctx: Context) -> Any:
            return ctx.once(f"answer {version}", bill.pay, version, item.key, cost=1)

        @pipeline.stage(name="print", after="read", version="1", backoff=QUICK)
        def printing(item: Item, ctx: Context) -> Any:
            return ctx.result("read")

        return pipeline

    return make


def test_a_worker_with_the_old_version_pays_for_nothing_and_one_with_the_new_version_for_each_once(
    run: Bench, books, bill
):
    with run.serving(books("1"), KEYS, name="old") as (_, ran):
        wait_for(lambda: ran.states("print").get("done") == len(KEYS))
        app = run.app(books("2"))
        assert app.reprocess("books") == {"read": len(KEYS)}
        assert [one.worker for one in app.outdated_workers("books")["read"]] == ["old"]
        why = app.why(KEYS[0])
        assert why.reason == "version"
        assert "waits for a worker with version 2 of stage 'read'; worker 'old' still runs version 1" in why.text
        # The old worker is awake and works: what it may do, it does.
        app.add("books", ["another"])
        wait_for(lambda: ran.state("another", "print") == "done")
        assert bill.by_version() == {"1": len(KEYS) + 1}
        run(books("2"))
        assert bill.by_version() == {"1": len(KEYS) + 1, "2": len(KEYS)}
        assert ran.result(KEYS[0], "print") == f"{KEYS[0]} by 2"
    assert [one["payments"] for one in charged(app)] == [2 * len(KEYS) + 1]


def test_work_for_a_worker_with_the_right_version_says_what_holds_that_worker_back(run: Bench, books):
    with run.serving(books("1"), KEYS, name="old") as (_, ran):
        wait_for(lambda: ran.states("print").get("done") == len(KEYS))
        app = run.app(books("2"))
        app.pause("books", reason="to look at it")
        app.reprocess("books")
        assert app.why(KEYS[0]).reason == "version"
        with run.serving(books("2"), name="new"):
            why = wait_for(lambda: (said := app.why(KEYS[0])).reason == "paused" and said)
            assert why.text == "pipeline 'books' is paused: to look at it"


def test_without_another_worker_it_waits_as_any_work_does(run: Bench, books):
    run(books("1"), KEYS)
    app = run.app(books("2"))
    app.reprocess("books")
    assert app.why(KEYS[0]).reason == "no_worker"


def test_a_worker_whose_version_the_new_one_is_compatible_with_may_do_it(run: Bench, books, bill):
    with run.serving(books("2"), KEYS, name="earlier") as (_, ran):
        wait_for(lambda: ran.states("print").get("done") == len(KEYS))
        app = run.app(books("3", compatible_from=["2"]))
        assert app.reprocess("books", stale_only=False, stage="read") == {"read": len(KEYS)}
        wait_for(lambda: len(bill.paid) == 2 * len(KEYS))
    assert bill.by_version() == {"2": 2 * len(KEYS)}


def test_work_that_waited_before_the_old_worker_came_is_refused_by_it_too(run: Bench, books, bill):
    """It was sent back when nobody was there, so it is not on hold, and the version moves on while it waits."""
    run(books("1"), KEYS)
    run.app(books("2")).reprocess("books")
    with run.serving(books("2", resource="model"), name="second"):
        wait_for(lambda: bill.by_version()["2"] == len(KEYS))
        wait_for(lambda: not run.app(books("2")).plan("books"))
        app = run.app(books("3"))
        app.pause("books", reason="to look at it")
        app.reprocess("books")
        app.retry(states=["on_hold"], pipeline="books", key=KEYS[0])
        app.resume("books")
        # What a person has let run may be run by anyone, and it is the only one.
        wait_for(lambda: bill.by_version()["2"] == len(KEYS) + 1 or len(bill.paid) > 2 * len(KEYS))
        assert app.status().pipelines[0].stages[0].states["on_hold"] == len(KEYS) - 1
    assert bill.by_version()["3"] == 0


@pytest.mark.parametrize("settings", [{}, {"resource": "model"}, {"resource": "model", "estimate": lambda item: 1}])
def test_a_claim_of_a_worker_that_has_become_outdated_is_put_on_hold_for_others(run: Bench, books, bill, settings):
    """Its rows wait in the open: whoever finds one that is not for it sets it apart."""
    run(books("1"), KEYS)
    app = run.app(books("2"))
    app.reprocess("books")
    assert app.status().pipelines[0].stages[0].states == {"pending": len(KEYS)}
    with run.serving(books("1", **settings), name="old"):
        # By starting, the old one has made its version the registered one; this undoes it before work begins there.
        run.app(books("2")).register()
        wait_for(lambda: not app.status().pipelines[0].stages[0].states.get("pending"))
        assert bill.by_version()["2"] == 0
        ran = run(books("2", **settings))
    assert ran.states("print") == {"done": len(KEYS)}
    assert bill.by_version()["1"] + bill.by_version()["2"] == 2 * len(KEYS)


def test_the_request_follows_the_registered_version_on_and_back(run: Bench, books, bill):
    with run.serving(books("1"), KEYS[:5], name="old") as (_, ran):
        wait_for(lambda: ran.states("print").get("done") == 5)
        run.app(books("2")).reprocess("books")
        app = run.app(books("3"))
        app.register()
        assert "version 3" in app.why(KEYS[0]).text
        back = run.app(books("1"))
        back.register()
        wait_for(lambda: bill.by_version()["1"] == 10)
    assert app.status().pipelines[0].stages[0].states == {"done": 5}


def test_cancel_takes_it_back_and_the_result_stands(run: Bench, books, bill):
    with run.serving(books("1"), KEYS[:5], name="old") as (_, ran):
        wait_for(lambda: ran.states("print").get("done") == 5)
        app = run.app(books("2"))
        app.reprocess("books")
        assert app.cancel(pipeline="books") == {"on_hold": 5}
        run(books("2"))
        assert bill.by_version() == {"1": 5}
        assert ran.result(KEYS[0], "read") == f"{KEYS[0]} by 1"


def test_a_retry_of_the_new_version_is_not_for_the_old_worker_either(run: Bench, bill):
    failed = threading.Event()

    def pipeline(version: str) -> Pipeline:
        pipeline = Pipeline("books")

        @pipeline.stage(name="read", version=version, backoff=QUICK)
        def read(item: Item, ctx: Context) -> Any:
            bill.pay(version, item.key)
            if version == "2" and not failed.is_set():
                failed.set()
                raise OSError("the line broke")
            if version == "3":
                raise Permanent("there is no third")

        return pipeline

    with run.serving(pipeline("1"), ["one"], name="old") as (_, ran):
        wait_for(lambda: ran.state("one", "read") == "done")
        run.app(pipeline("2")).reprocess("books")
        run(pipeline("2"))
    assert bill.by_version() == {"1": 1, "2": 2}
