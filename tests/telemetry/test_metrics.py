"""What a worker counts, and when: after the commit, once, with labels of which there are few."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest

from holdfast import Holdfast, Permanent, Pipeline, RetryLater, Skip, points
from holdfast.discovery import discovering
from holdfast.engine.claim import claim
from holdfast.errors import StoreUnavailable
from holdfast.model.paid_call import PaidCall
from holdfast.telemetry.metrics import MOST_MODELS, OTHER, OUTCOMES, Metrics
from holdfast.telemetry.metrics_counts import Counts
from holdfast.telemetry.metrics_gauges import Sample
from holdfast.telemetry.metrics_prometheus import text_of
from holdfast.telemetry.metrics_table import ATTEMPTS, COST, OF_STORE, OF_WORKERS, STAGES, TOKENS
from holdfast.worker import Settings
from tests.support.bench import QUICK, Bench
from tests.support.scrapes import check_with_promtool, samples, total, value
from tests.support.steps import ask

pytestmark = pytest.mark.req("P18")


def worked(app: Holdfast, **settings: Any) -> str:
    """What a worker serves after its work."""
    worker = app.worker(Settings(grace_seconds=0.2, poll_seconds=0.1, **settings), metrics=True)
    worker.run(until_drained=True)
    assert worker.metrics is not None
    return text_of(worker.metrics.read(), []).decode()


def every_outcome() -> Pipeline[Any]:
    pipeline = Pipeline("books")
    snoozed: list[str] = []

    @pipeline.stage(max_attempts=2, backoff=QUICK)
    def first(item: Any, ctx: Any) -> None:
        if item.key == "skip":
            raise Skip("nothing in it")
        if item.key == "bad":
            raise Permanent("never")
        if item.key == "raises":
            raise ValueError("secret-error-text")
        if item.key == "later" and not snoozed:
            snoozed.append(item.key)
            raise RetryLater(after="10ms")

    @pipeline.stage(after="first", isolate="process")
    def second(item: Any, ctx: Any) -> None:
        ctx.cost("0.25")

    return pipeline


def test_a_worker_counts_what_it_has_done_with_every_outcome(run: Bench) -> None:
    pipeline = every_outcome()
    app = run.app(pipeline, ["a", "b", "later", "skip", "bad", "raises"])
    text = worked(app)
    counted = {
        stage: {
            outcome: value(text, "holdfast_attempts_total", pipeline="books", stage=stage, outcome=outcome)
            for outcome in OUTCOMES
        }
        for stage in ("first", "second")
    }
    assert counted["first"] == dict.fromkeys(OUTCOMES, 1) | {"done": 3, "lost": 0}
    # Children report to their worker, which counts.
    assert counted["second"] == dict.fromkeys(OUTCOMES, 0) | {"done": 4}
    # The same as the store counts for its curves.
    assert {one.stage: one.attempts for one in app.throughput()} == {
        stage: sum(n or 0 for n in outcomes.values()) for stage, outcomes in counted.items()
    }
    for stage, attempts in (("first", 8), ("second", 4)):
        assert value(text, "holdfast_attempt_duration_seconds_count", pipeline="books", stage=stage) == attempts
        assert value(text, "holdfast_wait_seconds_count", pipeline="books", stage=stage) == attempts
    assert value(text, "holdfast_cost_total", pipeline="books", stage="second", resource="") == 1
    assert {one for _, labels in samples(text) for name, one in labels if name == "op"} >= {"cycle", "sweep"}
    check_with_promtool(text)


def test_items_that_a_source_finds_are_counted_as_added(url: str) -> None:
    pipeline = Pipeline("books")

    @pipeline.stage()
    def read(item: Any, ctx: Any) -> None:
        return None

    pipeline.source("shelf", list=["a", "b", "c"], every="1h")
    sources = discovering({pipeline.name: pipeline.sources}, {}, [pipeline.spec])
    with Holdfast(url, [pipeline.spec], services=[sources]) as app:
        text = worked(app)
    assert value(text, "holdfast_attempts_total", pipeline="books", stage="read", outcome="done") == 3
    assert value(text, "holdfast_store_batch_rows_sum", op="add") == 3
    assert (value(text, "holdfast_store_commit_seconds_count", op="add") or 0) >= 1


def test_a_retry_that_is_due_and_a_paid_call_are_counted_with_their_money_and_tokens(run: Bench) -> None:
    pipeline = Pipeline("books", resources={"gemini": {"concurrency": 2}})
    told = {"model": "flash", "tokens_in": 100, "tokens_out": 30, "tokens_cached": 40, "tokens_reasoning": 20}

    @pipeline.stage(resource="gemini")
    def ask(item: Any, ctx: Any) -> None:
        ctx.once("ask", lambda: "answer", cost="0.40", facts=told)

    text = worked(run.app(pipeline, ["a", "b"]))
    assert value(text, "holdfast_cost_total", pipeline="books", stage="ask", resource="gemini") == pytest.approx(0.8)
    counted = {
        direction: value(
            text, "holdfast_tokens_total", pipeline="books", stage="ask", model="flash", direction=direction
        )
        for direction in ("in", "out", "cached", "reasoning")
    }
    assert counted == {"in": 200, "out": 60, "cached": 80, "reasoning": 40}
    assert value(text, "holdfast_store_batch_rows_sum", op="memo") == 4  # two intents, two answers


def test_a_call_for_several_items_counts_its_tokens_once(run: Bench) -> None:
    pipeline = Pipeline("books")
    told = {"model": "flash", "tokens_in": 100, "tokens_out": 31, "tokens_cached": 40, "tokens_reasoning": 1}

    @pipeline.stage(batch=3)
    def ask(items: Any, ctx: Any) -> Any:
        ctx.once("ask", lambda some: [one.key for one in some], items, cost="0.40", facts=told)
        return {item.key: None for item in items}

    text = worked(run.app(pipeline, ["a", "b", "c"]), concurrency=1)
    calls = round(total(text, "holdfast_cost_total") / 0.4)
    assert calls >= 1
    assert total(text, "holdfast_cost_total") == pytest.approx(0.4 * calls)
    for direction, n in (("in", 100), ("out", 31), ("cached", 40), ("reasoning", 1)):
        assert total(text, "holdfast_tokens_total", direction=direction) == n * calls


def test_a_paid_call_that_died_in_between_is_in_doubt_once(run: Bench) -> None:
    pipeline = Pipeline("books")
    tried: list[str] = []

    @pipeline.stage(max_attempts=1)
    def ask(item: Any, ctx: Any) -> None:
        def call() -> None:
            tried.append(item.key)
            raise TimeoutError("was it charged?")

        ctx.once("ask", call, cost="0.40")

    app = run.app(pipeline, ["a"])
    text = worked(app)
    assert value(text, "holdfast_in_doubt_total", pipeline="books", stage="ask") == 1
    assert total(text, "holdfast_cost_total") == 0
    assert value(text_of(Counts(), app.gauges()).decode(), "holdfast_in_doubt", pipeline="books", stage="ask") == 1


def test_an_attempt_whose_worker_died_is_lost(run: Bench) -> None:
    pipeline = Pipeline("books")

    @pipeline.stage()
    def only(item: Any, ctx: Any) -> None:
        return None

    app = run.app(pipeline, ["a"])
    [stage] = app.store.read(lambda tx: [row[0] for row in tx.run("read_stages")])
    nobody = 999
    assert len(app.store.write(lambda tx: claim(tx, nobody, stage, 1))) == 1
    text = worked(app)
    assert value(text, "holdfast_attempts_total", pipeline="books", stage="only", outcome="lost") == 1
    assert value(text, "holdfast_attempts_total", pipeline="books", stage="only", outcome="done") == 1
    assert app.throughput()[0].outcomes == {"lost": 1, "done": 1}


def test_what_a_child_process_commits_itself_is_counted_by_its_worker(run: Bench) -> None:
    """Effects that only the child has are run there, for an item that a worker held when it died."""
    pipeline = Pipeline("books", resources={"gemini": {"concurrency": 2}})

    @pipeline.stage(resource="gemini")
    def only(item: Any, ctx: Any) -> None:
        ctx.cost("0.5", facts={"model": "flash", "tokens_in": 7})
        ctx.effect(lambda connection: None)

    app = run.app(pipeline, ["a", "b"])
    app.store.write(lambda tx: ask(tx, "UPDATE holdfast_waiting SET alone = 2"))
    text = worked(app)
    assert value(text, "holdfast_attempts_total", pipeline="books", stage="only", outcome="done") == 2
    assert value(text, "holdfast_cost_total", pipeline="books", stage="only", resource="gemini") == 1
    assert total(text, "holdfast_tokens_total", model="flash", direction="in") == 14
    assert [one.attempts for one in app.throughput()] == [2]


@pytest.fixture
def at_points() -> Any:
    before = points.listener
    yield points.listen
    points.listen(before)


@pytest.mark.fault(26)
@pytest.mark.parametrize("fate", ["committed", "rolled back"])
def test_an_attempt_counts_once_although_the_reply_to_its_commit_was_lost(
    run: Bench, at_points: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, fate: str
) -> None:
    pipeline = Pipeline("books")

    @pipeline.stage()
    def only(item: Any, ctx: Any) -> None:
        return None

    app = run.app(pipeline, ["a", "b", "c"])
    kind = type(app.store.connect())
    ending = threading.local()
    left = [fate]

    def look(point: str) -> None:
        if point == "store.insert_routine":
            ending.here = True

    def commit(driver: Any) -> None:
        lost = left.pop() if left and getattr(ending, "here", False) else ""
        if lost == "rolled back":
            raise StoreUnavailable("the line went dead before COMMIT arrived")
        committed(driver)
        if lost:
            raise StoreUnavailable("the line went dead before the answer arrived")

    committed = kind.commit
    monkeypatch.setattr(kind, "commit", commit)
    at_points(look)
    text = worked(app)
    assert not left
    assert value(text, "holdfast_attempts_total", pipeline="books", stage="only", outcome="done") == 3
    assert total(text, "holdfast_attempts_total") == 3


def test_what_was_not_committed_is_not_counted(run: Bench, at_points: Callable[..., Any]) -> None:
    pipeline = Pipeline("books")

    @pipeline.stage()
    def only(item: Any, ctx: Any) -> None:
        return None

    app = run.app(pipeline, ["a", "b", "c"])
    worker = app.worker(Settings(grace_seconds=0.1, poll_seconds=0.1), metrics=True)
    assert worker.metrics is not None
    seen: list[tuple[float, int]] = []

    def look(point: str) -> None:
        if point == "commit.before":
            counted = worker.metrics.read().numbers[ATTEMPTS, ("books", "only", "done")]
            seen.append((counted, app.status().pipeline("books").stage("only").states.get("done", 0)))

    at_points(look)
    worker.run(until_drained=True)
    assert seen
    assert all(counted <= stored for counted, stored in seen)
    at_points(None)
    assert worker.metrics.read().numbers[ATTEMPTS, ("books", "only", "done")] == 3


def test_no_label_has_a_key_an_error_text_or_a_worker(run: Bench) -> None:
    keys = [f"the-key-{n}" for n in range(30)] + ["raises", "bad"]
    app = run.app(every_outcome(), keys)
    worker = app.worker(Settings(grace_seconds=0.2, poll_seconds=0.1, name="the-worker"), metrics=True)
    shown: list[Sample] = []
    worker.run(until_drained=True, on_tick=lambda: shown.extend(app.gauges()))
    assert worker.metrics is not None
    text = text_of(worker.metrics.read(), app.gauges()).decode()
    labels = {one for _, had in samples(text) for one in had}
    labels |= {(name, one) for sample in shown for name, one in zip(sample.metric.labels, sample.labels, strict=True)}
    allowed = {name for metric in (*OF_WORKERS, *OF_STORE) for name in metric.labels} | {"le"}
    assert {name for name, _ in labels} <= allowed
    assert not [one for _, one in labels if "the-key" in one or "secret" in one or "the-worker" in one]
    # As many series with a thousand items as with one: they only depend on the pipeline.
    series = len(samples(text))
    app.add("books", [f"more-{n}" for n in range(100)])
    worker = app.worker(Settings(grace_seconds=0.2, poll_seconds=0.1), metrics=True)
    worker.run(until_drained=True)
    assert worker.metrics is not None
    assert len(samples(text_of(worker.metrics.read(), app.gauges()).decode())) <= series


class _Tx:
    """A committed transaction that has paid for calls."""

    def __init__(self, calls: list[PaidCall]) -> None:
        self.ended: list[Any] = []
        self.paid = [((), calls)]
        row = type("Row", (), {"pipeline_name": 'a"b\\c\nd', "name": "{evil}"})()
        layout = type("Known", (), {"stages": {1: row}})()
        self.store = type("StoreOf", (), {"cache": {"layout": layout}})()


def call(model: str) -> PaidCall:
    return PaidCall(0, 1, 1, "ask", "done", 1, 1, 1_000_000, 'r"1', model, 10, 5, 0, 0, "{}", 0, 0)


def test_hostile_names_are_escaped_and_read_back_as_they_are() -> None:
    metrics = Metrics()
    metrics.committed("cycle", 1, 0.1, _Tx([call('evil"}\n#\\')]))  # type: ignore[arg-type]
    text = text_of(metrics.read(), [Sample(STAGES, ('a"b', "ü\n", "done"), 3)]).decode()
    found = samples(text)
    labels = {"pipeline": 'a"b\\c\nd', "stage": "{evil}", "model": 'evil"}\n#\\', "direction": "in"}
    assert found["holdfast_tokens_total", frozenset(labels.items())] == 10
    assert value(text, "holdfast_stages", pipeline='a"b', stage="ü\n", state="done") == 3
    check_with_promtool(text)


def test_handlers_that_invent_models_make_no_more_series() -> None:
    metrics = Metrics()
    metrics.committed("cycle", 1, 0.1, _Tx([call(f"model-{n}") for n in range(10 * MOST_MODELS)]))  # type: ignore[arg-type]
    numbers = metrics.read().numbers
    models = {labels[2] for metric, labels in numbers if metric is TOKENS}
    assert len(models) == MOST_MODELS + 1
    assert OTHER in models
    assert sum(n for (metric, labels), n in numbers.items() if metric is TOKENS and labels[3] == "in") == 10_000
    assert numbers[COST, ('a"b\\c\nd', "{evil}", 'r"1')] == 1000 * 1_000_000


def test_processes_that_invent_models_make_no_more_series_together() -> None:
    parent = Metrics()
    for process in range(5):
        child = Metrics()
        child.committed("cycle", 1, 0.1, _Tx([call(f"{process}-{n}") for n in range(MOST_MODELS)]))  # type: ignore[arg-type]
        parent.add(child.take().sent())
    numbers = parent.read().numbers
    assert len({labels[2] for metric, labels in numbers if metric is TOKENS}) == MOST_MODELS + 1
    assert sum(n for (metric, labels), n in numbers.items() if metric is TOKENS and labels[3] == "in") == 5_000


def test_a_transaction_that_cannot_be_counted_is_committed_all_the_same(caplog: pytest.LogCaptureFixture) -> None:
    metrics = Metrics()
    wrong = _Tx([call("m")._replace(stage=99)])
    metrics.committed("cycle", 1, 0.1, wrong)  # type: ignore[arg-type]
    metrics.committed("cycle", 1, 0.1, wrong)  # type: ignore[arg-type]
    assert caplog.text.count("could not be counted") == 1
    metrics.committed("cycle", 1, 0.1, _Tx([call("m")]))  # type: ignore[arg-type]
    assert sum(n for (metric, _), n in metrics.read().numbers.items() if metric is COST) == 1_000_000


def test_counts_travel_in_pieces_and_add_up() -> None:
    here, there = Metrics(), Metrics()
    there.begin([("p", "s")])
    for n in range(3):
        there.committed("cycle", n, 0.004 * n, _Tx([call("m")]))  # type: ignore[arg-type]
        here.add(there.take().sent())
    assert not there.take()
    assert text_of(here.read(), []) == text_of(there.read(), [])
    assert value(text_of(here.read(), []).decode(), "holdfast_in_doubt_total", pipeline="p", stage="s") == 0
