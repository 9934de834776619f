"""ctx.call, when the answer wraps an HTTP response: what is inside was paid for, and is kept."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import json
from collections.abc import Iterator
from decimal import ROUND_CEILING, Decimal
from pathlib import Path
from typing import Any

import httpx
import pytest

from holdfast import BatchContext, Context, Item, Pipeline
from holdfast.blobs import BLOBS_VARIABLE
from holdfast.blobs.folder import BlobFolder
from holdfast.providers import prepare
from holdfast.worker.once import KEPT_BYTES
from tests.support.bench import Bench, Ran
from tests.support.kept import give_a_place, opened
from tests.support.model_clients import GROUP
from tests.support.model_provider.asked import Asked, answer_to, speech_of
from tests.support.model_provider.provider import ModelProvider

pytestmark = [GROUP, pytest.mark.req("P11", "P13", "V13")]

MODEL = "gpt-5-mini"
TABLE = {MODEL: {"in": "0.25", "out": "2.00", "cached": "0.025"}}
MILLIONTH = Decimal("0.000001")


@pytest.fixture(scope="module")
def provider(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ModelProvider]:
    with ModelProvider(tmp_path_factory.mktemp("provider")) as provider:
        yield provider


@pytest.fixture(autouse=True)
def place(url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    return give_a_place(url, tmp_path, monkeypatch)


@pytest.fixture
def openai(provider: ModelProvider) -> Any:
    import openai

    return prepare(openai.OpenAI(base_url=f"{provider.url('openai')}/v1", api_key="none"))


@pytest.fixture
def openai_async(provider: ModelProvider) -> Any:
    import openai

    return prepare(openai.AsyncOpenAI(base_url=f"{provider.url('openai')}/v1", api_key="none"))


def one_stage(handler: Any, **settings: Any) -> Pipeline:
    pipeline = Pipeline("p", resources={"api": {}}, prices=TABLE)
    pipeline.stage(name="work", **{"resource": "api", "max_attempts": 1, **settings})(handler)
    return pipeline


def asked_for(item: Item) -> dict[str, Any]:
    return {"model": MODEL, "messages": [{"role": "user", "content": f"{item.key}?"}]}


def error(ran: Ran, key: str = "page") -> str:
    return str(ran.stage(key, "work").error)


def rejected(ran: Ran) -> Any:
    [call] = ran.app.calls("page")
    assert call.state == "rejected"
    return call.value


# Raw responses --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("stream", [False, True])
def test_a_raw_response_is_kept_as_what_it_says_and_costs_what_it_used(run: Bench, openai: Any, stream: bool) -> None:
    more: dict[str, Any] = {"stream": True, "stream_options": {"include_usage": True}} if stream else {}

    def work(item: Item, ctx: Context) -> Any:
        raw = openai.chat.completions.with_raw_response.create
        return ctx.call("ask", raw, **asked_for(item), **more)["choices"][0]["message"]["content"]

    ran = run(one_stage(work), ["page"])
    expected = answer_to(Asked("chat", MODEL, "page?"))
    assert ran.result("page", "work") == expected.text
    assert ran.app.costs().total.costs == expected.amount(MODEL).quantize(MILLIONTH, ROUND_CEILING)


def test_a_raw_response_of_an_async_client_is_kept_as_what_it_says(run: Bench, openai_async: Any) -> None:
    async def work(item: Item, ctx: Context) -> Any:
        answer = await ctx.call("ask", openai_async.chat.completions.with_raw_response.create, **asked_for(item))
        return answer["choices"][0]["message"]["content"]

    assert run(one_stage(work), ["page"]).result("page", "work") == answer_to(Asked("chat", MODEL, "page?")).text


@pytest.mark.parametrize("is_async", [False, True])
def test_a_raw_response_of_anthropic_is_kept_as_what_it_says(
    run: Bench, provider: ModelProvider, is_async: bool
) -> None:
    import anthropic

    kind: Any = anthropic.AsyncAnthropic if is_async else anthropic.Anthropic
    raw = prepare(kind(base_url=provider.url("anthropic"), api_key="none")).messages.with_raw_response.create
    ask: dict[str, Any] = {
        "model": "claude-haiku-4-5",
        "max_tokens": 100,
        "messages": [{"role": "user", "content": "page?"}],
    }

    def work(item: Item, ctx: Context) -> Any:
        return ctx.call("ask", raw, **ask)

    async def work_async(item: Item, ctx: Context) -> Any:
        return await ctx.call("ask", raw, **ask)

    answer = run(one_stage(work_async if is_async else work), ["page"]).result("page", "work")
    assert answer["content"][0]["text"] == answer_to(Asked("messages", "claude-haiku-4-5", "page?")).text


def test_a_raw_response_of_an_async_client_is_kept_in_a_sync_handler_too(run: Bench, provider: ModelProvider) -> None:
    """Only the event loop that is over could parse it; its body has been read, and is paid for."""
    import anthropic

    async def ask(prompt: str) -> Any:
        client = prepare(anthropic.AsyncAnthropic(base_url=provider.url("anthropic"), api_key="none"))
        async with client:
            return await client.messages.with_raw_response.create(
                model="claude-haiku-4-5", max_tokens=100, messages=[{"role": "user", "content": prompt}]
            )

    def work(item: Item, ctx: Context) -> Any:
        return ctx.options(cost="0.01").call("ask", lambda: asyncio.run(ask("page?")))

    ran = run(one_stage(work), ["page"])
    answer = ran.result("page", "work")
    assert answer["content"][0]["text"] == answer_to(Asked("messages", "claude-haiku-4-5", "page?")).text
    assert ran.app.costs().total.costs == Decimal("0.01")


@pytest.mark.parametrize("way", ["call", "once"])
def test_a_response_that_is_sent_in_a_with_block_was_not_sent_and_is_free(
    run: Bench, openai: Any, provider: ModelProvider, way: str
) -> None:
    def work(item: Item, ctx: Context) -> Any:
        streaming = openai.chat.completions.with_streaming_response.create
        if way == "once":
            return ctx.once("ask", lambda: streaming(**asked_for(item)), cost="0.25")
        return ctx.call("ask", streaming, **asked_for(item))

    before = len(provider.ledger.entries())
    ran = run(one_stage(work, estimate="0.25"), ["page"])
    assert error(ran).startswith("NotSent: ") and "with_raw_response" in error(ran)
    assert (ran.app.costs().total.costs, ran.app.costs().total.in_doubt) == (0, 0)
    assert len(provider.ledger.entries()) == before


# Binary content -------------------------------------------------------------------------------------------------------


def speech(item: Item) -> dict[str, Any]:
    return {"model": "gpt-4o-mini-tts", "voice": "coral", "input": item.key}


SPEECH = speech_of(answer_to(Asked("speech", "gpt-4o-mini-tts", "page")).text)


@pytest.mark.parametrize("kind", ["plain", "raw", "isolated", "async"])
def test_speech_is_kept_as_content_and_the_answer_is_a_reference(
    run: Bench, openai: Any, openai_async: Any, provider: ModelProvider, kind: str
) -> None:
    function = openai.audio.speech.with_raw_response.create if kind == "raw" else openai.audio.speech.create

    def work(item: Item, ctx: Context) -> Any:
        said = ctx.options(cost="0.015").call("speech", function, **speech(item))
        assert ctx.blob(said).read() == SPEECH
        return {"speech": said}

    async def work_async(item: Item, ctx: Context) -> Any:
        said = await ctx.options(cost="0.015").call("speech", openai_async.audio.speech.create, **speech(item))
        return {"speech": said}

    before = len(provider.ledger.entries())
    isolate: dict[str, Any] = {"isolate": "process"} if kind == "isolated" else {}
    ran = run(one_stage(work_async if kind == "async" else work, **isolate), ["page"])
    reference = ran.result("page", "work")["speech"]
    assert opened(ran.app, reference) == SPEECH
    assert (reference["size"], reference["type"]) == (len(SPEECH), "audio/mpeg")
    assert ran.app.costs().total.costs == Decimal("0.015")
    assert len(provider.ledger.entries()) == before + 1


def test_bytes_and_streams_of_bytes_are_content(run: Bench) -> None:
    def pieces() -> Iterator[bytes]:
        yield b"\xff\x00"
        yield b"\x01"

    def work(item: Item, ctx: Context) -> Any:
        with_cost = ctx.options(cost="0.01")
        return [with_cost.call("whole", lambda: b"\xff\x00\x01"), with_cost.call("pieces", pieces)]

    ran = run(one_stage(work), ["page"])
    assert [opened(ran.app, one) for one in ran.result("page", "work")] == [b"\xff\x00\x01"] * 2


@pytest.fixture
def without_a_place(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """PostgreSQL has none of its own; the disk of the other is full."""

    def full(*_: Any) -> Any:
        raise OSError(28, "No space left on device")

    monkeypatch.delenv(BLOBS_VARIABLE, raising=False)
    monkeypatch.setattr(BlobFolder, "write", full)


@pytest.mark.usefixtures("without_a_place")
@pytest.mark.parametrize("way", ["call", "once"])
def test_speech_that_cannot_be_kept_as_content_is_kept_whole_with_the_call(run: Bench, openai: Any, way: str) -> None:
    """Nobody throws away what is paid for: the person who finds the stage paused finds the recording."""

    def work(item: Item, ctx: Context) -> Any:
        if way == "call":
            return ctx.options(cost="0.015").call("speech", openai.audio.speech.create, **speech(item))
        return ctx.once("speech", lambda: openai.audio.speech.create(**speech(item)), cost="0.015")

    ran = run(one_stage(work), ["page"])
    assert ran.state("page", "work") == "failed"
    assert error(ran).startswith("AnswerNotKept: ") and "base64" in error(ran)
    assert rejected(ran) == f"data:audio/mpeg;base64,{base64.b64encode(SPEECH).decode()}"
    assert ran.app.costs().total.costs == Decimal("0.015")


def test_a_raw_response_in_once_is_kept_as_its_text_for_a_person(run: Bench, openai: Any) -> None:
    def work(item: Item, ctx: Context) -> Any:
        raw = openai.chat.completions.with_raw_response.create
        return ctx.once("ask", lambda: raw(**asked_for(item)), cost="0.01")

    ran = run(one_stage(work), ["page"])
    assert error(ran).startswith("AnswerNotKept: ")
    assert (
        answer_to(Asked("chat", MODEL, "page?")).text in json.loads(rejected(ran))["choices"][0]["message"]["content"]
    )


def test_an_async_raw_response_in_once_is_kept_as_its_text_for_a_person(run: Bench, provider: ModelProvider) -> None:
    import anthropic

    raw = anthropic.AsyncAnthropic(base_url=provider.url("anthropic"), api_key="none").messages.with_raw_response.create
    ask: dict[str, Any] = {"model": "claude-haiku-4-5", "max_tokens": 100}

    async def work(item: Item, ctx: Context) -> Any:
        return await ctx.once("ask", lambda: raw(**ask, messages=[{"role": "user", "content": "page?"}]), cost="0.01")

    ran = run(one_stage(work), ["page"])
    assert error(ran).startswith("AnswerNotKept: ")
    assert answer_to(Asked("messages", "claude-haiku-4-5", "page?")).text in rejected(ran)


def test_content_that_is_too_long_for_the_ledger_says_how_much_of_it_is_there(run: Bench) -> None:
    whole = b"\xff" * (KEPT_BYTES + 1000)

    def work(item: Item, ctx: Context) -> Any:
        return ctx.once("speech", lambda: whole, cost="0.01")

    kept = rejected(run(one_stage(work), ["page"]))
    head, _, text = kept.partition("base64,")
    assert head.startswith(f"(the first {KEPT_BYTES} of {len(whole)} bytes) ")
    assert base64.b64decode(text) == whole[:KEPT_BYTES]


# Responses of plain HTTP clients --------------------------------------------------------------------------------------

REQUEST = httpx.Request("POST", "http://127.0.0.1/")
BODIES: dict[str, tuple[dict[str, Any], Any]] = {
    "json": ({"json": {"a": 1}}, {"a": 1}),
    "problem": (
        {"content": b'{"a": 1}', "headers": {"content-type": "application/problem+json; charset=utf-8"}},
        {"a": 1},
    ),
    "text": ({"text": "gut – ja"}, "gut – ja"),
    "constant": ({"content": b"[NaN]", "headers": {"content-type": "application/json"}}, "[NaN]"),
    "broken": ({"content": b"{", "headers": {"content-type": "application/json"}}, "{"),
    "empty": ({"content": b""}, ""),
}


@pytest.mark.parametrize("name", BODIES)
def test_a_response_of_a_plain_client_is_kept_as_its_json_or_its_text(run: Bench, name: str) -> None:
    given, kept = BODIES[name]

    def work(item: Item, ctx: Context) -> Any:
        return ctx.options(cost="0.01").call("ask", lambda: httpx.Response(200, request=REQUEST, **given))

    assert run(one_stage(work), ["page"]).result("page", "work") == kept


def test_an_error_that_a_plain_client_returns_is_an_error(run: Bench) -> None:
    def work(item: Item, ctx: Context) -> Any:
        return ctx.options(cost="0.01").call("ask", lambda: httpx.Response(400, text="wrong", request=REQUEST))

    ran = run(one_stage(work), ["page"])
    assert error(ran).startswith("BadRequest: ") and ran.app.costs().total.costs == 0


def test_one_recording_for_a_batch_stays_readable_and_the_stage_waits(run: Bench) -> None:
    def work(items: list[Item], ctx: BatchContext) -> Any:
        return ctx.options(cost="0.01").call("speech", lambda items: b"\xff\x00", items)

    ran = run(one_stage(work, batch=2), ["page", "other"])
    assert error(ran).startswith("AnswerNotKept: ")
    [kept] = [call.value for key in ("page", "other") for call in ran.app.calls(key) if call.value is not None]
    assert hashlib.sha256(b"\xff\x00").hexdigest() in kept


# Errors inside of answers ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "body",
    [
        {"error": {"code": 502, "message": "the model went away"}},
        {"choices": [{"index": 0, "finish_reason": "error", "error": {"code": 502, "message": "the model went away"}}]},
    ],
)
def test_an_error_inside_an_answer_is_no_answer(run: Bench, body: dict[str, Any]) -> None:
    import openai

    said = {"id": "gen-1", "object": "chat.completion", "created": 1, "model": MODEL, "choices": None, **body}
    transport = httpx.MockTransport(lambda request: httpx.Response(200, json=said))
    client = openai.OpenAI(
        base_url="http://127.0.0.1:9/v1", api_key="none", http_client=httpx.Client(transport=transport)
    )

    def work(item: Item, ctx: Context) -> Any:
        return ctx.call("ask", client.chat.completions.create, **asked_for(item))

    ran = run(one_stage(work), ["page"])
    assert "InDoubt: an error inside the answer: 502: the model went away" in error(ran)
    [call] = ran.app.calls("page")
    assert call.state == "doubtful"


def test_a_function_of_ones_own_may_answer_with_an_error(run: Bench) -> None:
    def work(item: Item, ctx: Context) -> Any:
        return ctx.call("ask", lambda: {"error": {"message": "none found"}})["error"]["message"]

    assert run(one_stage(work), ["page"]).result("page", "work") == "none found"
