"""New versions, in real runs: what runs again, what is kept, what it costs, and that no step is paid for twice."""

from __future__ import annotations

import itertools
import threading
from collections import Counter
from collections.abc import Callable
from datetime import timedelta
from decimal import Decimal
from typing import Any

import pytest

from holdfast import Backoff, Context, Holdfast, Item, Pipeline
from tests.support.bench import QUICK, Bench
from tests.support.money import charged
from tests.support.processes import wait_for

pytestmark = pytest.mark.req("J13")

MANY = 1000
KEYS = [f"book-{number:04}" for number in range(MANY)]

Answer = Callable[[Item, Context], Any]


class Calls:
    """Which handler ran for which item, in order."""

    def __init__(self) -> None:
        self._log: list[tuple[str, str]] = []

    def note(self, stage: str, item: Item) -> None:
        self._log.append((stage, item.key))

    def take(self) -> Counter[str]:
        """How often each stage ran since the last look."""
        return Counter(stage for stage, _ in self.taken())

    def taken(self) -> list[tuple[str, str]]:
        log, self._log = self._log, []
        return log


calls = Calls()


@pytest.fixture(autouse=True)
def _forget() -> None:
    calls.taken()


def library(
    extract: str = "1",
    analyse: str = "1",
    *,
    text: Answer = lambda item, ctx: f"text of {item.key}",
    verdict: Answer = lambda item, ctx: f"about {ctx.result('extract')}",
    **settings: Any,
) -> Pipeline:
    """The pipeline as deployed with these versions; `settings` are those of `extract`."""
    books = Pipeline("books", resources={"gemini": {}, "mistral": {}})

    @books.stage(name="extract", version=extract, **{"backoff": QUICK, **settings})
    def extracting(item: Item, ctx: Context) -> Any:
        calls.note("extract", item)
        return text(item, ctx)

    @books.stage(name="analyse", after="extract", version=analyse, backoff=QUICK)
    def analysing(item: Item, ctx: Context) -> Any:
        calls.note("analyse", item)
        return verdict(item, ctx)

    return books


def reprocess(run: Bench, pipeline: Pipeline, **which: Any) -> dict[str, int]:
    """Send back what is stale under this deployment, run it, and say how often each handler ran."""
    run.app(pipeline).reprocess("books", **which)
    calls.taken()
    run(pipeline, timeout=120)
    return dict(calls.take())


def spent(app: Holdfast) -> Decimal:
    return app.costs(["pipeline"]).total.costs


# Early cutoff ---------------------------------------------------------------------------------------------------------


def test_a_thousand_items_with_the_same_output_run_the_next_stage_for_none_and_with_ten_others_for_ten(run: Bench):
    run(library(), KEYS, timeout=120)
    assert calls.take() == {"extract": MANY, "analyse": MANY}

    assert reprocess(run, library("2")) == {"extract": MANY}

    changed = set(KEYS[::100])
    assert len(changed) == 10
    third = library("3", text=lambda item, ctx: f"text of {item.key}" + (" anew" if item.key in changed else ""))
    run.app(third).reprocess("books")
    ran = run(third, timeout=120)
    log = calls.taken()
    assert Counter(stage for stage, _ in log) == {"extract": MANY, "analyse": 10}
    assert {key for stage, key in log if stage == "analyse"} == changed
    assert ran.result(KEYS[100], "analyse") == f"about text of {KEYS[100]} anew"
    assert ran.result(KEYS[101], "analyse") == f"about text of {KEYS[101]}"
    assert ran.app.plan("books") == ()


@pytest.mark.parametrize("changed", [False, True])
def test_when_both_stages_are_new_each_runs_once_per_item_and_in_order(run: Bench, changed: bool):
    keys = KEYS[:100]
    run(library(), keys)
    calls.taken()
    both = library("2", "2", text=lambda item, ctx: f"text of {item.key}{changed or ''}")
    app = run.app(both)
    assert app.reprocess("books") == {"extract": 100}
    run(both)
    log = calls.taken()
    assert Counter(log) == Counter({(stage, key): 1 for stage in ("extract", "analyse") for key in keys})
    place = {step: number for number, step in enumerate(log)}
    assert all(place["extract", key] < place["analyse", key] for key in keys)
    assert app.plan("books") == ()


def test_noise_that_is_taken_off_before_comparing_stops_the_wave_and_is_kept_in_the_result(run: Bench):
    ticks = itertools.count()

    def noisy(item: Item, ctx: Context) -> Any:
        return {"text": item.key, "took": next(ticks)}

    def without_noise(result: Any) -> Any:
        result.pop("took")
        return result

    first = library(text=noisy, normalise=without_noise)
    before = run(first, KEYS[:20]).result(KEYS[0], "extract")
    second = library("2", text=noisy, normalise=without_noise)
    assert reprocess(run, second) == {"extract": 20}
    after = run(second).result(KEYS[0], "extract")
    assert after["text"] == before["text"] and after["took"] > before["took"]
    # The same noise, looked at: everything that follows runs again.
    assert reprocess(run, library("3", text=noisy)) == {"extract": 20, "analyse": 20}


def test_a_normalise_function_that_raises_fails_the_attempt_like_a_handler(run: Bench):
    def wrong(result: Any) -> Any:
        raise KeyError("took")

    ran = run(library(normalise=wrong, max_attempts=2), ["book"])
    failed = ran.stage("book", "extract")
    assert (failed.state, failed.attempts, failed.error) == ("exhausted", 2, "KeyError: 'took'")


@pytest.mark.parametrize("kind", [{"isolate": "process"}, {"batch": 8}], ids=["process", "batch"])
def test_versions_and_early_cutoff_are_the_same_however_a_handler_runs(run: Bench, kind: dict[str, Any]):
    def deploy(version: str) -> Pipeline:
        books = Pipeline("books")

        @books.stage(version=version, **kind)
        def extract(item: Any, ctx: Any) -> Any:
            return [one.key for one in item] if isinstance(item, list) else item.key

        @books.stage(after="extract")
        def analyse(item: Item, ctx: Context) -> None:
            calls.note("analyse", item)

        return books

    run(deploy("1"), KEYS[:10])
    assert calls.take() == {"analyse": 10}
    second = deploy("2")
    assert run.app(second).reprocess("books") == {"extract": 10}
    ran = run(second)
    assert calls.take() == {}
    assert ran.stage(KEYS[0], "extract").version == "2"
    assert ran.app.plan("books") == ()


def test_accepted_results_are_not_run_again(run: Bench):
    run(library(), KEYS[:10])
    calls.taken()
    second = library("2", "2")
    app = run.app(second)
    assert app.accept("books", by="me") == {"extract": 10, "analyse": 10}
    assert app.reprocess("books") == {}
    run(second)
    assert calls.take() == {}


# Money ----------------------------------------------------------------------------------------------------------------


def price(item: Item) -> Decimal:
    """Between 0.01 and 0.09, by the last digit."""
    return Decimal(int(item.key[-1]) % 9 + 1) / 100


def paid_text(item: Item, ctx: Context) -> Any:
    return ctx.once("gemini", lambda: f"text of {item.key}", cost=price(item), resource="gemini")


def paid_verdict(item: Item, ctx: Context) -> Any:
    ctx.cost(price(item) / 2, "mistral")
    return f"about {ctx.result('extract')}"


@pytest.mark.req("J10")
def test_the_forecast_of_a_repeated_run_is_what_the_run_then_costs(run: Bench):
    """Within a tenth is promised; where the same calls cost the same, it is exact."""
    first = library(text=paid_text, verdict=paid_verdict)
    app = run(first, KEYS[:200]).app
    once = spent(app)
    assert once == sum(price(Item("books", key, {})) * Decimal("1.5") for key in KEYS[:200])

    second = library("2", "2", text=paid_text, verdict=paid_verdict)
    app = run.app(second)
    forecasts = app.plan("books")
    forecast = forecasts.total.cost
    assert [(one.stage, one.sure) for one in forecasts] == [("extract", 200), ("analyse", 200)]
    assert all(one.handler_time > timedelta() for one in forecasts)
    app.reprocess("books")
    run(second)
    recorded = spent(app) - once
    assert abs(forecast - recorded) <= recorded / 10
    assert forecast == recorded


@pytest.mark.req("J10")
def test_a_forecast_is_within_a_tenth_where_single_costs_waver_and_says_by_how_much(run: Bench):
    wavers = {"1": itertools.cycle([80, 100, 120, 110, 90]), "2": itertools.cycle([120, 95, 105, 85, 95, 100])}
    lock = threading.Lock()

    def deploy(version: str) -> Pipeline:
        def text(item: Item, ctx: Context) -> str:
            with lock:
                ctx.cost(Decimal(next(wavers[version])) / 1000)
            return item.key

        return library(version, text=text)

    app = run(deploy("1"), KEYS[:100]).app
    once = spent(app)
    app = run.app(deploy("2"))
    [extract, _] = app.plan("books")
    app.reprocess("books")
    run(deploy("2"))
    recorded = spent(app) - once
    assert abs(extract.cost - recorded) <= recorded / 10
    # Costs of 0.08 to 0.12 deviate by 0.0141 each, a hundred of them by ten times that.
    assert float(extract.spread) == pytest.approx(0.141421, rel=0.01)


@pytest.mark.req("J10")
def test_no_more_is_spent_than_the_budget_allows(run: Bench):
    run(library(text=paid_text), KEYS[:50])
    second = library("2", text=paid_text)
    app = run.app(second)
    once = spent(app)
    sent = app.reprocess("books", budget="0.50")["extract"]
    run(second)
    assert Decimal("0.50") - spent(app) + once < Decimal("0.10")
    assert spent(app) - once <= Decimal("0.50")
    [extract, _] = app.plan("books")
    assert extract.sure == 50 - sent


@pytest.mark.req("D4")
def test_a_retry_resumes_at_the_stage_that_failed_and_what_is_finished_is_neither_run_nor_paid_again(run: Bench):
    """A $0.40 extraction is paid once, however often what follows it fails, and however often the program is run."""

    def text(item: Item, ctx: Context) -> Any:
        return ctx.once("gemini", lambda: f"text of {item.key}", cost="0.40")

    def moody(item: Item, ctx: Context) -> Any:
        if ctx.attempt < 4:
            raise ConnectionError("try again")
        return ctx.result("extract")

    books = library(text=text, verdict=moody)
    ran = run(books, ["emma"])
    assert calls.take() == {"extract": 1, "analyse": 4}
    assert (ran.state("emma", "analyse"), ran.result("emma", "analyse")) == ("done", "text of emma")
    for _ in range(2):
        run(books, ["emma"])
    assert calls.take() == {}
    assert charged(ran.app, ["stage"]) == [{"stage": "extract", "amount": 400_000, "payments": 1}]


@pytest.mark.req("D4")
def test_a_stage_that_failed_for_good_is_sent_back_alone(run: Bench):
    well = threading.Event()

    def text(item: Item, ctx: Context) -> Any:
        return ctx.once("gemini", lambda: f"text of {item.key}", cost="0.40")

    def verdict(item: Item, ctx: Context) -> Any:
        ctx.once("asked", lambda: "the model's answer", cost="0.10")
        if not well.is_set():
            raise ValueError("the disk is full")
        return "well"

    books = Pipeline("books")
    books.stage(name="extract")(lambda item, ctx: (calls.note("extract", item), text(item, ctx))[1])
    books.stage(name="analyse", after="extract", max_attempts=2, backoff=Backoff(first_seconds=0.001))(
        lambda item, ctx: (calls.note("analyse", item), verdict(item, ctx))[1]
    )
    ran = run(books, ["emma"])
    assert ran.state("emma", "analyse") == "exhausted"
    well.set()
    ran.app.retry(key="emma")
    assert run(books).state("emma", "analyse") == "done"
    assert calls.take() == {"extract": 1, "analyse": 3}
    assert {one.stage: str(one.costs) for one in ran.app.costs(["stage"]).sums} == {"extract": "0.4", "analyse": "0.1"}


# While somebody works -------------------------------------------------------------------------------------------------


def test_work_on_an_output_that_is_replaced_meanwhile_is_taken_back_and_done_on_the_new_one(run: Bench):
    gate, busy = threading.Event(), threading.Event()

    def verdict(item: Item, ctx: Context) -> Any:
        seen = ctx.result("extract")
        if seen == "old":
            busy.set()
            gate.wait(20)
        return f"about the {seen}"

    old = library(text=lambda item, ctx: "old", verdict=verdict)
    new = library("2", text=lambda item, ctx: "new", verdict=verdict)
    run(old, ["emma"], stages=("extract",))
    with run.serving(old, stages=("analyse",)) as (_, ran):
        assert busy.wait(20)
        assert run.app(new).reprocess("books") == {"extract": 1}
        run(new, stages=("extract",))
        wait_for(lambda: ran.state("emma", "analyse") == "done")
        gate.set()
        wait_for(lambda: ran.events("lease_lost", "emma"))
    assert ran.result("emma", "analyse") == "about the new"
    assert [one.stage for one in ran.events("superseded", "emma")] == ["analyse"]
    assert ran.app.check() == []


# Items from before ----------------------------------------------------------------------------------------------------


@pytest.mark.req("D8")
def test_items_from_before_a_stage_existed_simply_work(run: Bench):
    """Finished, failed, and never begun: each goes on from where it was as soon as the stage is there."""

    def deploy(*stages: tuple[str, str]) -> Pipeline:
        books = Pipeline("books")
        for name, after in stages:

            def work(item: Item, ctx: Context, name: str = name, after: str = after) -> Any:
                calls.note(name, item)
                if (name, item.key) == ("extract", "torn"):
                    raise ValueError("torn")
                return [*(ctx.result(after) if after else []), name]

            books.stage(name=name, after=after or (), max_attempts=1, backoff=QUICK)(work)
        return books

    run(deploy(("extract", "")), ["done", "torn"])
    run.app(deploy(("extract", "")), ["waits"])
    calls.taken()
    grown = deploy(("extract", ""), ("scan", ""), ("chunk", "extract"), ("embed", "chunk"))
    ran = run(grown)
    assert calls.take() == {"extract": 1, "scan": 3, "chunk": 2, "embed": 2}
    for key in ("done", "waits"):
        assert ran.result(key, "embed") == ["extract", "chunk", "embed"]
        assert ran.app.show(key).status == "done"
    assert (ran.state("torn", "extract"), ran.state("torn", "chunk"), ran.state("torn", "scan")) == (
        "exhausted",
        None,
        "done",
    )
    assert ran.app.plan("books") == ()
