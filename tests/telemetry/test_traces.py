"""Spans as a collector receives them: what an item's attempts, paid calls, effects and commits are, and what links them."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
from opentelemetry import trace
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF, ALWAYS_ON, Sampler
from sqlalchemy import text

from holdfast import BatchContext, Context, Holdfast, Item, Pipeline, RetryLater
from holdfast.providers import prepare
from tests.docs.test_guides import ROOT, blocks
from tests.support.bench import QUICK, Bench
from tests.support.otlp_receiver import OtlpReceiver, Received

pytestmark = pytest.mark.req("P18")

Trace = Callable[..., TracerProvider]


@pytest.fixture
def run(url: str) -> Iterator[Bench]:
    bench = Bench(url)
    yield bench
    bench.close()


@pytest.fixture
def receiver() -> Iterator[OtlpReceiver]:
    with OtlpReceiver() as receiver:
        yield receiver


@pytest.fixture
def traced(receiver: OtlpReceiver, monkeypatch: pytest.MonkeyPatch) -> Iterator[Trace]:
    """Make this a program that traces, with the exporter of the SDK."""
    made: list[TracerProvider] = []

    def start(sampler: Sampler = ALWAYS_ON) -> TracerProvider:
        provider = TracerProvider(sampler=sampler)
        provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter(receiver.url)))
        # OpenTelemetry lets a program set a provider once, and the tests share a process.
        monkeypatch.setattr(trace, "_TRACER_PROVIDER", provider)
        made.append(provider)
        return provider

    yield start
    receiver.go_on.set()
    for provider in made:
        provider.shutdown()


def test_an_item_is_traced_from_its_adding_through_stages_paid_calls_and_effects(
    run: Bench, receiver: OtlpReceiver, traced: Trace
):
    provider, pipeline = traced(), Pipeline("books")

    @pipeline.stage(version="7")
    def extract(item: Item, ctx: Context) -> Any:
        facts = {"model": "m-1", "tokens_in": 812, "tokens_out": 40, "tokens_cached": 12}
        return ctx.once("gemini", call, cost="0.40", facts=facts)

    @pipeline.stage(after="extract")
    def save(item: Item, ctx: Context) -> None:
        ctx.effect(write, item.key)

    def call() -> str:
        with trace.get_tracer("mine").start_as_current_span("request"):
            return "text"

    def write(connection: Any, key: str) -> None:
        with trace.get_tracer("mine").start_as_current_span("insert"):
            connection.execute(text("SELECT 1"))

    run(pipeline, ["v.epub"], name="me")
    provider.force_flush()
    added = receiver.one("holdfast.add")
    assert (added.kind, added.parent) == ("producer", "")
    assert added.about["messaging.destination.name"] == "books"
    assert added.about["messaging.batch.message_count"] == 1
    first, second = receiver.one("process books.extract"), receiver.one("process books.save")
    for span in (first, second):
        assert (span.kind, span.parent, span.failed) == ("consumer", "", False)
        assert span.links == [added.identity]
        assert span.about["holdfast.outcome"] == "done"
        assert span.about["holdfast.lease"] > 0
    assert len({added.trace, first.trace, second.trace}) == 3
    assert {
        name: value for name, value in first.about.items() if name not in ("holdfast.lease", "holdfast.outcome")
    } == {
        "holdfast.pipeline": "books",
        "holdfast.stage": "extract",
        "holdfast.version": "7",
        "holdfast.worker": "me",
        "holdfast.item.key": "v.epub",
        "holdfast.attempt": 1,
        "messaging.system": "holdfast",
        "messaging.destination.name": "books.extract",
        "messaging.operation.name": "process",
        "messaging.operation.type": "process",
        "messaging.message.id": "v.epub",
        "messaging.client.id": "me",
    }
    paid = receiver.one("holdfast.once gemini")
    assert (paid.kind, paid.trace, paid.parent) == ("client", first.trace, first.id)
    assert paid.about == {
        "gen_ai.response.model": "m-1",
        "gen_ai.usage.input_tokens": 812,
        "gen_ai.usage.output_tokens": 40,
        "gen_ai.usage.cache_read.input_tokens": 12,
        "holdfast.cost": 0.4,
    }
    effect = receiver.one("holdfast.effect")
    assert (effect.trace, effect.parent) == (second.trace, second.id)
    assert receiver.one("request").parent == paid.id
    assert receiver.one("insert").parent == effect.id
    commits = receiver.named("holdfast.commit")
    assert [link for commit in commits for link in commit.links] == [first.identity, second.identity]
    assert {commit.parent for commit in commits} == {""}


def test_the_span_of_a_call_through_a_client_library_names_provider_operation_and_model(
    url: str, traced: Trace, receiver: OtlpReceiver
) -> None:
    def reply(request: httpx.Request) -> httpx.Response:
        usage = {"prompt_tokens": 11, "completion_tokens": 3, "total_tokens": 14}
        choice = {"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": "hi"}}
        said = {"id": "r", "object": "chat.completion", "created": 1, "model": "gpt-5-mini-2025", "choices": [choice]}
        return httpx.Response(200, json={**said, "usage": usage})

    client = prepare(openai.OpenAI(api_key="none", http_client=httpx.Client(transport=httpx.MockTransport(reply))))
    pipeline = Pipeline("books", store=url, prices={"gpt-5-mini": {"in": "1", "out": "4"}})

    @pipeline.stage()
    def ask(item: Any, ctx: Any) -> None:
        ctx.call(
            "summary", client.chat.completions.create, model="gpt-5-mini", messages=[{"role": "user", "content": "x"}]
        )

    provider = traced()
    pipeline.add(["a"])
    pipeline.run()
    provider.force_flush()
    about = receiver.one("holdfast.once summary").about
    assert about.pop("holdfast.cost") > 0
    assert about == {
        "gen_ai.request.model": "gpt-5-mini",
        "gen_ai.provider.name": "openai",
        "gen_ai.operation.name": "chat",
        "gen_ai.response.model": "gpt-5-mini-2025",
        "gen_ai.usage.input_tokens": 11,
        "gen_ai.usage.output_tokens": 3,
    }


@pytest.mark.parametrize("kind", ["sync", "async", "process", "async process"])
def test_spans_of_a_handler_and_of_its_paid_calls_are_below_its_attempt(
    run: Bench, receiver: OtlpReceiver, traced: Trace, kind: str
):
    provider, pipeline = traced(), Pipeline("books")
    isolate = "process" if "process" in kind else None

    def note(where: str) -> None:
        with trace.get_tracer("mine").start_as_current_span(where):
            pass

    def work(item: Item, ctx: Context) -> None:
        note("in the handler")
        ctx.once("model", lambda: note("in the call"), cost=1)

    async def work_async(item: Item, ctx: Context) -> None:
        await asyncio.create_task(asyncio.to_thread(note, "in the handler"))

        async def call() -> None:
            await asyncio.sleep(0)
            note("in the call")

        await ctx.once("model", call, cost=1)

    handler = work_async if "async" in kind else work
    pipeline.stage(name="work", isolate=isolate)(handler)
    run(pipeline, ["a"])
    provider.force_flush()
    attempt, paid = receiver.one("process books.work"), receiver.one("holdfast.once model")
    assert receiver.one("in the handler").parent == attempt.id
    assert paid.parent == attempt.id
    assert receiver.one("in the call").parent == paid.id
    assert {one.trace for one in (paid, receiver.one("in the call"))} == {attempt.trace}


def test_attempts_that_fail_say_why_without_secrets_and_link_to_the_same_adding(
    run: Bench, receiver: OtlpReceiver, traced: Trace
):
    provider, pipeline = traced(), Pipeline("books")

    @pipeline.stage(backoff=QUICK, max_attempts=2)
    def work(item: Item, ctx: Context) -> Any:
        if ctx.attempt == 1:
            return ctx.once("model", call, cost=1)
        return RetryLater(after=0) if ctx.attempt == 2 and not snoozed.is_set() and not snoozed.set() else "done"

    snoozed = threading.Event()

    def call() -> None:
        raise ValueError("password=hunter22 is wrong")

    run(pipeline, ["a"])
    provider.force_flush()
    failed, later, done = sorted(receiver.named("process books.work"), key=lambda span: span.about["holdfast.lease"])
    assert [span.about["holdfast.outcome"] for span in (failed, later, done)] == ["retried", "handed_back", "done"]
    assert [span.about["holdfast.attempt"] for span in (failed, later, done)] == [1, 2, 2]
    assert [span.failed for span in (failed, later, done)] == [True, False, False]
    assert failed.links == later.links == done.links == [receiver.one("holdfast.add").identity]
    for span in (failed, receiver.one("holdfast.once model")):
        assert span.failed
        assert span.error == "ValueError: password=*** is wrong"
        [(name, about)] = span.events
        assert name == "exception"
        assert (about["exception.type"], about["exception.message"]) == ("ValueError", "password=*** is wrong")
        assert "in call" in about["exception.stacktrace"]
        assert "ValueError: password=hunter22" not in about["exception.stacktrace"]


def test_an_effect_that_raises_is_told_by_its_own_span(run: Bench, receiver: OtlpReceiver, traced: Trace):
    provider, pipeline = traced(), Pipeline("books")

    @pipeline.stage(max_attempts=1)
    def work(item: Item, ctx: Context) -> None:
        ctx.effect(wrong)

    def wrong(connection: Any) -> None:
        raise KeyError("column")

    assert run(pipeline, ["a"]).state("a", "work") == "exhausted"
    provider.force_flush()
    effect = receiver.one("holdfast.effect")
    assert effect.parent == receiver.one("process books.work").id
    assert effect.error == "KeyError: 'column'"


def test_a_batch_is_one_span_with_a_link_for_each_item(run: Bench, receiver: OtlpReceiver, traced: Trace):
    provider, pipeline = traced(), Pipeline("books")

    @pipeline.stage(batch=2)
    def work(items: list[Item], ctx: BatchContext) -> list[Any]:
        return [None for _ in items]

    run(pipeline, ["a", "b"])
    provider.force_flush()
    span = receiver.one("process books.work")
    assert span.about["messaging.batch.message_count"] == 2
    assert "holdfast.item.key" not in span.about
    assert span.links == [receiver.one("holdfast.add").identity] * 2
    assert [about["holdfast.item.key"] for about in span.about_links] == ["a", "b"]


def test_a_follow_on_item_links_to_the_attempt_that_submitted_it(run: Bench, receiver: OtlpReceiver, traced: Trace):
    provider, pipeline = traced(), Pipeline("books")

    @pipeline.stage()
    def work(item: Item, ctx: Context) -> None:
        if item.key == "a":
            ctx.submit("books", key="b")

    run(pipeline, ["a"])
    provider.force_flush()
    spans = {span.about["holdfast.item.key"]: span for span in receiver.named("process books.work")}
    assert spans["b"].links == [spans["a"].identity]


def test_data_that_is_added_again_links_to_the_newest_adding(run: Bench, receiver: OtlpReceiver, traced: Trace):
    provider, pipeline = traced(), Pipeline("books")

    @pipeline.stage()
    def work(item: Item, ctx: Context) -> None: ...

    app = run.app(pipeline)
    app.add("books", [{"key": "a", "n": 1}])
    with trace.get_tracer("mine").start_as_current_span("request"):
        app.add("books", [{"key": "a", "n": 2}])
    run(pipeline)
    provider.force_flush()
    newest = next(span for span in receiver.named("holdfast.add") if span.parent)
    assert newest.parent == receiver.one("request").id
    assert receiver.one("process books.work").links == [newest.identity]


def test_an_item_that_a_source_has_found_links_to_the_newest_look_that_changed_it(
    url: str, receiver: OtlpReceiver, traced: Trace, tmp_path: Path
):
    provider, pipeline = traced(), Pipeline("books", store=url)
    pipeline.source("inbox", files=str(tmp_path / "*.txt"), every="1h")

    @pipeline.stage()
    def work(item: Item, ctx: Context) -> None: ...

    def look(**files: str) -> Received:
        for name, content in files.items():
            (tmp_path / f"{name}.txt").write_text(content)
        with trace.get_tracer("mine").start_as_current_span("look"):
            pipeline.run()
        provider.force_flush()
        return receiver.named("holdfast.discover")[-1]

    first = look(a="one", b="one")
    assert (first.kind, first.parent, first.failed) == ("producer", receiver.named("look")[-1].id, False)
    assert first.about == {
        "holdfast.pipeline": "books",
        "holdfast.source": "inbox",
        "messaging.system": "holdfast",
        "messaging.destination.name": "books",
        "messaging.operation.name": "discover",
        "messaging.operation.type": "send",
        "messaging.batch.message_count": 2,
    }
    second = look(a="another one")
    with Holdfast(url, [pipeline.spec]) as app:
        app.retry(states=["done"])
    third = look()
    assert len({first.identity, second.identity, third.identity}) == 3
    links = [(one.about["holdfast.item.key"], *one.links) for one in receiver.named("process books.work")]
    assert sorted(links[:2]) == [("a.txt", first.identity), ("b.txt", first.identity)]
    assert sorted(links[2:]) == [("a.txt", second.identity), ("b.txt", first.identity)]


def locked_shelf() -> list[str]:
    raise OSError("the shelf is locked: postgresql://me:hunter2@db.example/books")


def test_a_look_that_fails_says_why_without_secrets(url: str, receiver: OtlpReceiver, traced: Trace):
    provider, pipeline = traced(), Pipeline("books", store=url)
    pipeline.source("shelf", python=f"{__name__}.locked_shelf", every="1h")

    @pipeline.stage()
    def work(item: Item, ctx: Context) -> None: ...

    pipeline.run()
    provider.force_flush()
    span = receiver.one("holdfast.discover")
    assert span.failed
    assert "the shelf is locked" in span.error
    assert "hunter2" not in span.error


def test_work_that_is_handed_back_while_its_handler_runs_ends_its_span(
    run: Bench, receiver: OtlpReceiver, traced: Trace
):
    provider, pipeline = traced(), Pipeline("books")
    started, go_on = threading.Event(), threading.Event()

    @pipeline.stage()
    def work(item: Item, ctx: Context) -> None:
        started.set()
        go_on.wait()

    try:
        with run.serving(pipeline, ["a"], grace_seconds=0.01):
            assert started.wait(60)
        provider.force_flush()
        span = receiver.one("process books.work")
    finally:
        go_on.set()
    assert span.about["holdfast.outcome"] == "handed_back"
    assert not span.failed


KILLED = """
import threading
from holdfast import Pipeline

books = Pipeline("books")


@books.stage()
def work(item, ctx):
    print("started", flush=True)
    threading.Event().wait()


books.run(lease=1)
"""


def test_the_attempt_after_a_killed_worker_links_to_the_same_adding(
    run: Bench, receiver: OtlpReceiver, traced: Trace, tmp_path: Path
):
    provider, pipeline = traced(), Pipeline("books")

    @pipeline.stage()
    def work(item: Item, ctx: Context) -> None: ...

    run.app(pipeline, ["a"])
    environment = {**os.environ, "HOLDFAST_URL": run.url, "PYTHONPATH": str(ROOT)}
    killed = subprocess.Popen([sys.executable, "-c", KILLED], env=environment, stdout=subprocess.PIPE, text=True)
    assert killed.stdout is not None
    assert killed.stdout.readline() == "started\n"
    os.kill(killed.pid, signal.SIGKILL)
    killed.wait()
    run(pipeline, timeout=120)
    provider.force_flush()
    span = receiver.one("process books.work")
    assert span.about["holdfast.attempt"] == 2
    assert span.links == [receiver.one("holdfast.add").identity]


def test_without_sampling_nothing_is_exported_and_nothing_kept_with_the_items(
    run: Bench, receiver: OtlpReceiver, traced: Trace
):
    provider, pipeline = traced(ALWAYS_OFF), Pipeline("books")
    kept: list[str | None] = []
    sampled: list[bool] = []

    @pipeline.stage()
    def work(item: Item, ctx: Context) -> None:
        kept.append(ctx._lease.traceparent)
        sampled.append(trace.get_current_span().get_span_context().trace_flags.sampled)
        ctx.effect(lambda connection: None)

    ran = run(pipeline, ["a", "b"])
    provider.force_flush()
    assert ran.states("work")["done"] == 2
    assert sampled == [False, False], "what the handler calls is not sampled, either"
    assert receiver.spans == []
    assert kept == [None, None]


def test_while_the_exporter_hangs_all_work_is_done_and_no_span_is_lost(
    run: Bench, receiver: OtlpReceiver, traced: Trace
):
    provider, pipeline = traced(), Pipeline("books")
    receiver.go_on.clear()
    hanging = threading.Thread(target=lambda: (run.app(pipeline, ["first"]), provider.force_flush()), daemon=True)
    keys = [f"page-{n}" for n in range(100)]

    @pipeline.stage()
    def work(item: Item, ctx: Context) -> None: ...

    hanging.start()
    assert receiver.asked.wait(60)
    ran = run(pipeline, keys)
    assert ran.states("work")["done"] == 101
    assert receiver.spans == []
    receiver.go_on.set()
    hanging.join(60)
    provider.force_flush()
    assert len(receiver.named("process books.work")) == 101


def test_lines_of_a_handler_name_its_span(
    run: Bench, receiver: OtlpReceiver, traced: Trace, caplog: pytest.LogCaptureFixture
):
    provider, pipeline = traced(), Pipeline("books")

    @pipeline.stage()
    def work(item: Item, ctx: Context) -> None:
        ctx.log.warning("look")

    run(pipeline, ["a"])
    provider.force_flush()
    span: Received = receiver.one("process books.work")
    [record] = [record for record in caplog.records if record.getMessage().endswith("look")]
    assert record.holdfast["trace_id"] == span.trace
    assert record.holdfast["span_id"] == span.id
    assert {name: record.holdfast[name] for name in span.about if name in record.holdfast} == {
        name: value for name, value in span.about.items() if name.startswith("holdfast.") and name != "holdfast.outcome"
    }


UNTRACED = """
import sys
from holdfast import Pipeline

books = Pipeline("books")


@books.stage()
def work(item, ctx): ...


books.add(["a"])
books.run()
assert not [name for name in sys.modules if name.startswith("opentelemetry")]
"""


def test_a_program_that_does_not_trace_imports_nothing_of_opentelemetry(tmp_path: Path):
    environment = {**os.environ, "HOLDFAST_URL": f"sqlite:///{tmp_path / 'books.db'}", "PYTHONPATH": str(ROOT)}
    subprocess.run([sys.executable, "-c", UNTRACED], env=environment, check=True, timeout=300)


def test_the_program_on_the_page_sends_its_spans(url: str, tmp_path: Path, receiver: OtlpReceiver):
    [program] = blocks(ROOT / "docs/guide/tracing.md", "python")
    (tmp_path / "letters.py").write_text(program)
    environment = {
        **os.environ,
        "HOLDFAST_URL": url,
        "PYTHONPATH": str(ROOT),
        "OTEL_EXPORTER_OTLP_ENDPOINT": receiver.url.removesuffix("/v1/traces"),
    }
    subprocess.run([sys.executable, "letters.py"], cwd=tmp_path, env=environment, check=True, timeout=300)
    attempt = receiver.one("process letters.count")
    assert attempt.links == [receiver.one("holdfast.add").identity]
    paid = receiver.one("holdfast.once count")
    assert paid.parent == attempt.id
    assert paid.about == {"gen_ai.response.model": "by hand", "holdfast.cost": 0.01}
    assert receiver.one("holdfast.commit").links == [attempt.identity]
