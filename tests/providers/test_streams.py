"""Streams of each provider's own package, put together to the answer of the same call without streaming."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import pytest

from holdfast.errors import InDoubt, UsageError
from holdfast.providers import verdict
from holdfast.providers.streams import assemble, assemble_async, is_stream
from holdfast.providers.usage import Usage, usage
from tests.support.clients import GROUP

pytestmark = [pytest.mark.req("P2"), GROUP]

ASK: Any = [{"role": "user", "content": "well?"}]


def sse(*events: Any, named: bool = False) -> str:
    """Server-sent events; Anthropic names them."""
    lines = []
    for event in events:
        text = event if isinstance(event, str) else json.dumps(event)
        lines.append((f"event: {event['type']}\n" if named else "") + f"data: {text}\n\n")
    return "".join(lines)


class Source:
    """A transport of httpx or httpx2 that answers with events, and knows whether its reply was closed."""

    def __init__(self, http: Any, text: str, *, breaks: bool = False) -> None:
        self.closed = False
        source = self

        class Body(http.SyncByteStream, http.AsyncByteStream):  # type: ignore[misc]
            def __iter__(self) -> Iterator[bytes]:
                yield text.encode()
                if breaks:
                    raise http.ReadError("broken")

            async def __aiter__(self) -> AsyncIterator[bytes]:
                for part in self:
                    yield part

            def close(self) -> None:
                source.closed = True

            async def aclose(self) -> None:
                source.closed = True

        def answer(_: Any) -> Any:
            return http.Response(200, stream=Body(), headers={"content-type": "text/event-stream"})

        self.client = http.Client(transport=http.MockTransport(answer))
        self.async_client = http.AsyncClient(transport=http.MockTransport(answer))


# OpenAI --------------------------------------------------------------------------------------------------------------


def chunk(*choices: Any, **top: Any) -> Any:
    base = {"id": "c1", "object": "chat.completion.chunk", "created": 5, "model": "gpt-5-mini"}
    return {**base, "choices": list(choices), **top}


def choice(index: int = 0, finish: str | None = None, **delta: Any) -> Any:
    return {"index": index, "delta": delta, "finish_reason": finish}


def call_of(index: int, arguments: str, name: str | None = None, id: str | None = None) -> Any:
    whole = {"type": "function", "id": id} if id else {}
    return {
        "index": index,
        **whole,
        "function": {"name": name, "arguments": arguments} if name else {"arguments": arguments},
    }


COUNTS = {"prompt_tokens": 9, "completion_tokens": 4, "total_tokens": 13}
CHAT = [
    chunk(choice(role="assistant", content=""), choice(1, role="assistant", content="")),
    chunk(choice(content="It is "), choice(1, content="No")),
    chunk(choice(content="so.")),
    chunk(choice(tool_calls=[call_of(0, "", "look", "t0")])),
    chunk(choice(tool_calls=[call_of(0, '{"at":'), call_of(1, "{}", "stop", "t1")])),
    chunk(choice(tool_calls=[call_of(0, " 1}")])),
    chunk(choice(finish="tool_calls"), choice(1, finish="stop")),
    chunk(usage=COUNTS),
]
CHAT_ANSWER = {
    "id": "c1",
    "object": "chat.completion",
    "created": 5,
    "model": "gpt-5-mini",
    "choices": [
        {
            "index": 0,
            "finish_reason": "tool_calls",
            "message": {
                "role": "assistant",
                "content": "It is so.",
                "tool_calls": [
                    {"id": "t0", "type": "function", "function": {"name": "look", "arguments": '{"at": 1}'}},
                    {"id": "t1", "type": "function", "function": {"name": "stop", "arguments": "{}"}},
                ],
            },
        },
        {"index": 1, "finish_reason": "stop", "message": {"role": "assistant", "content": "No"}},
    ],
    "usage": COUNTS,
}


def by_openai(text: str, **more: Any) -> tuple[Any, Source]:
    import httpx2
    import openai

    source = Source(httpx2, text, **more)
    client = openai.OpenAI(api_key="none", max_retries=0, http_client=source.client)
    return client.chat.completions.create(model="m", messages=ASK, stream=True), source


async def by_async_openai(text: str, **more: Any) -> tuple[Any, Source]:
    import httpx2
    import openai

    source = Source(httpx2, text, **more)
    client = openai.AsyncOpenAI(api_key="none", max_retries=0, http_client=source.async_client)
    return await client.chat.completions.create(model="m", messages=ASK, stream=True), source


def said(form: Any) -> Any:
    """Without what is null."""
    if isinstance(form, dict):
        return {name: said(value) for name, value in form.items() if value is not None}
    return [said(one) for one in form] if isinstance(form, list) else form


def test_chat_chunks_become_a_chat_completion():
    from openai.types.chat import ChatCompletion

    stream, source = by_openai(sse(*CHAT, "[DONE]"))
    assert is_stream(stream)
    answer = assemble(stream)
    assert said(answer) == CHAT_ANSWER
    assert ChatCompletion.model_validate(answer) == ChatCompletion.model_validate(CHAT_ANSWER)
    assert usage(answer) == Usage("gpt-5-mini", 9, 4)
    assert source.closed


def test_an_async_stream_says_the_same():
    async def run() -> Any:
        stream, source = await by_async_openai(sse(*CHAT, "[DONE]"))
        assert is_stream(stream)
        answer = await assemble_async(stream)
        assert source.closed
        return answer

    assert said(asyncio.run(run())) == CHAT_ANSWER


def test_text_of_the_first_completions_api_is_put_together():
    import httpx2
    import openai

    top = {"id": "c", "object": "text_completion", "created": 1, "model": "m"}
    text = sse(
        {**top, "choices": [{"index": 0, "text": "It ", "finish_reason": None}]},
        {**top, "choices": [{"index": 0, "text": "is.", "finish_reason": "stop"}]},
    )
    client = openai.OpenAI(api_key="none", http_client=Source(httpx2, text).client)
    answer = assemble(client.completions.create(model="m", prompt="x", stream=True))
    assert answer["choices"][0]["text"] == "It is." and answer["object"] == "text_completion"


RESPONSE = {
    "id": "r",
    "object": "response",
    "created_at": 1,
    "model": "gpt-5",
    "status": "completed",
    "output": [],
    "parallel_tool_calls": True,
    "tool_choice": "auto",
    "tools": [],
    "usage": {
        "input_tokens": 3,
        "input_tokens_details": {"cached_tokens": 0},
        "output_tokens": 2,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": 5,
    },
}


def by_responses(*events: Any) -> tuple[Any, Source]:
    import httpx2
    import openai

    source = Source(httpx2, sse(*events))
    client = openai.OpenAI(api_key="none", max_retries=0, http_client=source.client)
    return client.responses.create(model="m", input="x", stream=True), source


@pytest.mark.parametrize("end", ["response.completed", "response.incomplete"])
def test_the_last_event_of_a_response_is_the_answer(end):
    started = {"type": "response.created", "sequence_number": 0, "response": {**RESPONSE, "status": "in_progress"}}
    stream, source = by_responses(started, {"type": end, "sequence_number": 1, "response": RESPONSE})
    answer = assemble(stream)
    assert answer["id"] == "r" and usage(answer) == Usage("gpt-5", 3, 2, provider="openai")
    assert source.closed


@pytest.mark.parametrize(
    "event",
    [
        {"type": "error", "sequence_number": 1, "code": "server_error", "message": "busy", "param": None},
        {
            "type": "response.failed",
            "sequence_number": 1,
            "response": {**RESPONSE, "status": "failed", "error": {"code": "server_error", "message": "busy"}},
        },
    ],
)
def test_a_response_that_fails_within_its_stream_is_in_doubt(event):
    stream, source = by_responses(event)
    with pytest.raises(InDoubt, match="server_error: busy"):
        assemble(stream)
    assert source.closed


# Anthropic -----------------------------------------------------------------------------------------------------------

MESSAGE = {
    "id": "m",
    "type": "message",
    "role": "assistant",
    "model": "claude",
    "content": [],
    "stop_reason": None,
    "stop_sequence": None,
    "usage": {"input_tokens": 10, "cache_read_input_tokens": 5, "output_tokens": 1},
}


def block(index: int, start: Any, *deltas: Any) -> list[Any]:
    return [
        {"type": "content_block_start", "index": index, "content_block": start},
        *({"type": "content_block_delta", "index": index, "delta": delta} for delta in deltas),
        {"type": "content_block_stop", "index": index},
    ]


MESSAGES = [
    {"type": "message_start", "message": MESSAGE},
    *block(
        0,
        {"type": "thinking", "thinking": "", "signature": ""},
        {"type": "thinking_delta", "thinking": "Let me "},
        {"type": "thinking_delta", "thinking": "see."},
        {"type": "signature_delta", "signature": "signed"},
    ),
    {"type": "ping"},
    *block(
        1, {"type": "text", "text": ""}, {"type": "text_delta", "text": "It "}, {"type": "text_delta", "text": "is."}
    ),
    *block(
        2,
        {"type": "tool_use", "id": "t", "name": "look", "input": {}},
        {"type": "input_json_delta", "partial_json": ""},
        {"type": "input_json_delta", "partial_json": '{"at": '},
        {"type": "input_json_delta", "partial_json": "1}"},
    ),
    *block(3, {"type": "tool_use", "id": "u", "name": "stop", "input": {}}),
    {
        "type": "message_delta",
        "delta": {"stop_reason": "tool_use", "stop_sequence": None},
        "usage": {"output_tokens": 40, "input_tokens": None},
    },
    {"type": "message_stop"},
]


def by_anthropic(*events: Any) -> tuple[Any, Source]:
    import anthropic
    import httpx2

    source = Source(httpx2, sse(*events, named=True))
    client = anthropic.Anthropic(api_key="none", max_retries=0, http_client=source.client)
    return client.messages.create(model="m", max_tokens=5, messages=ASK, stream=True), source


def test_message_events_become_a_message():
    from anthropic.types import Message

    stream, source = by_anthropic(*MESSAGES)
    answer = assemble(stream)
    assert said(answer["content"]) == [
        {"type": "thinking", "thinking": "Let me see.", "signature": "signed"},
        {"type": "text", "text": "It is."},
        {"type": "tool_use", "id": "t", "name": "look", "input": {"at": 1}},
        {"type": "tool_use", "id": "u", "name": "stop", "input": {}},
    ]
    assert Message.model_validate(answer).stop_reason == "tool_use"
    assert usage(answer) == Usage("claude", 15, 40, 5, provider="anthropic")
    assert source.closed


def test_an_input_that_is_cut_off_is_kept_as_text():
    cut = block(
        0,
        {"type": "tool_use", "id": "t", "name": "n", "input": {}},
        {"type": "input_json_delta", "partial_json": '{"a'},
    )
    answer = assemble(by_anthropic(MESSAGES[0], *cut, *MESSAGES[-2:])[0])
    assert answer["content"][0]["input"] == '{"a'


def test_the_stream_helper_of_anthropic_is_a_stream():
    import anthropic
    import httpx2

    source = Source(httpx2, sse(*MESSAGES, named=True))
    client = anthropic.Anthropic(api_key="none", max_retries=0, http_client=source.client)
    helper = client.messages.stream(model="m", max_tokens=5, messages=ASK)
    assert is_stream(helper)
    assert assemble(helper)["content"][1]["text"] == "It is."
    assert source.closed


# Gemini --------------------------------------------------------------------------------------------------------------


def part_of(*parts: Any, **candidate: Any) -> Any:
    return {
        "candidates": [{"index": 0, "content": {"role": "model", "parts": list(parts)}, **candidate}],
        "usageMetadata": {"promptTokenCount": 5, "candidatesTokenCount": 2, "totalTokenCount": 7},
        "modelVersion": "gemini-2.5-flash",
    }


GEMINI = [
    part_of({"text": "Let me see.", "thought": True}),
    part_of({"text": "It "}),
    part_of({"text": "is."}, {"functionCall": {"name": "look", "args": {"at": 1}}}),
    part_of(finishReason="STOP"),
]


def by_google(*chunks: Any) -> tuple[Any, Source]:
    import httpx
    from google import genai

    source = Source(httpx, sse(*chunks))
    options = genai.types.HttpOptions(httpx_client=source.client, httpx_async_client=source.async_client)
    return genai.Client(api_key="none", http_options=options), source


def test_chunks_of_gemini_become_one_answer():
    from google.genai.types import GenerateContentResponse

    client, source = by_google(*GEMINI)
    stream = client.models.generate_content_stream(model="m", contents="x")
    assert is_stream(stream)
    answer = assemble(stream)
    [only] = answer["candidates"]
    assert [part.get("text") or part["function_call"]["name"] for part in only["content"]["parts"]] == [
        "Let me see.",
        "It is.",
        "look",
    ]
    assert only["finish_reason"] == "STOP"
    assert GenerateContentResponse.model_validate(
        {k: v for k, v in answer.items() if k != "sdk_http_response"}
    ).candidates
    assert usage(answer) == Usage("gemini-2.5-flash", 5, 2, provider="google")
    assert source.closed


def test_async_chunks_of_gemini_say_the_same():
    async def run() -> Any:
        client, _ = by_google(*GEMINI)
        return await assemble_async(await client.aio.models.generate_content_stream(model="m", contents="x"))

    parts = asyncio.run(run())["candidates"][0]["content"]["parts"]
    assert [part.get("text") for part in parts] == ["Let me see.", "It is.", None]


def test_a_prompt_that_gemini_blocks_is_an_answer():
    client, _ = by_google({"promptFeedback": {"blockReason": "SAFETY"}, "usageMetadata": {"promptTokenCount": 5}})
    answer = assemble(client.models.generate_content_stream(model="m", contents="x"))
    assert answer["prompt_feedback"]["block_reason"] == "SAFETY" and answer["candidates"] == []


# Mistral, cohere, litellm ----------------------------------------------------------------------------------------------


def by_mistral(*events: Any) -> tuple[Any, Source]:
    import httpx2
    from mistralai.client import Mistral

    source = Source(httpx2, sse(*events))
    client = Mistral(api_key="none", client=source.client, async_client=source.async_client)
    return client.chat.stream(model="m", messages=ASK), source


def test_chunks_of_mistral_become_a_chat_completion():
    from mistralai.client.models import ChatCompletionResponse

    calls = [call_of(0, '{"at": 1}', "look", "t0"), call_of(0, "{}", "stop", "t1")]
    chunks = [
        chunk(choice(role="assistant", content="It ")),
        chunk(choice(content="is.")),
        chunk(choice(finish="tool_calls", content="", tool_calls=calls), usage=COUNTS),
    ]
    stream, source = by_mistral(*chunks, "[DONE]")
    assert is_stream(stream)
    answer = assemble(stream)
    whole = ChatCompletionResponse.model_validate(answer)
    message: Any = whole.choices[0].message
    assert message.content == "It is." and [one.function.name for one in message.tool_calls] == ["look", "stop"]
    assert usage(answer) == Usage("gpt-5-mini", 9, 4)
    assert source.closed


COHERE = [
    {"type": "message-start", "id": "c", "delta": {"message": {"role": "assistant"}}},
    {"type": "tool-plan-delta", "delta": {"message": {"tool_plan": "I look"}}},
    {
        "type": "tool-call-start",
        "index": 0,
        "delta": {
            "message": {"tool_calls": {"id": "t", "type": "function", "function": {"name": "look", "arguments": ""}}}
        },
    },
    {"type": "tool-call-delta", "index": 0, "delta": {"message": {"tool_calls": {"function": {"arguments": "{}"}}}}},
    {"type": "tool-call-end", "index": 0},
    {"type": "content-start", "index": 0, "delta": {"message": {"content": {"type": "text", "text": ""}}}},
    {"type": "content-delta", "index": 0, "delta": {"message": {"content": {"text": "It "}}}},
    {"type": "content-delta", "index": 0, "delta": {"message": {"content": {"text": "is."}}}},
    {"type": "content-end", "index": 0},
    {
        "type": "message-end",
        "delta": {"finish_reason": "COMPLETE", "usage": {"billed_units": {"input_tokens": 3, "output_tokens": 2}}},
    },
]


def by_cohere(*events: Any) -> tuple[Any, Source]:
    import cohere
    import httpx

    source = Source(httpx, sse(*events, named=True))
    client = cohere.ClientV2(api_key="none", max_retries=0, httpx_client=source.client)
    return client.chat_stream(model="m", messages=ASK), source


def test_events_of_cohere_become_a_chat_response():
    from cohere import V2ChatResponse

    stream, source = by_cohere(*COHERE)
    assert is_stream(stream)
    answer = assemble(stream)
    assert said(answer["message"]) == {
        "role": "assistant",
        "tool_plan": "I look",
        "tool_calls": [{"id": "t", "type": "function", "function": {"name": "look", "arguments": "{}"}}],
        "content": [{"type": "text", "text": "It is."}],
    }
    assert V2ChatResponse.model_validate(answer).finish_reason == "COMPLETE"
    assert usage(answer) == Usage("", 3, 2, provider="cohere")
    assert source.closed


def test_chunks_of_litellm_become_a_chat_completion():
    import httpx2
    import litellm
    import openai

    source = Source(httpx2, sse(*CHAT[:3], chunk(choice(finish="stop")), chunk(usage=COUNTS), "[DONE]"))
    client = openai.OpenAI(api_key="none", max_retries=0, http_client=source.client)
    options: Any = {"include_usage": True}
    stream = litellm.completion(model="openai/gpt-4o", messages=ASK, client=client, stream=True, stream_options=options)
    assert is_stream(stream)
    answer = assemble(stream)
    assert answer["choices"][0]["message"]["content"] == "It is so."
    assert answer["object"] == "chat.completion"
    assert usage(answer) == Usage("gpt-4o", 9, 4)
    assert source.closed


# Streams that do not end well ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "stream",
    [
        lambda: by_openai(sse(*CHAT[:3])),
        lambda: by_anthropic(*MESSAGES[:6]),
        lambda: by_responses({"type": "response.created", "sequence_number": 0, "response": RESPONSE}),
    ],
)
def test_a_stream_that_stops_before_its_answer_is_complete_is_in_doubt(stream):
    """Nothing but the missing end tells that the answer is cut off."""
    found, source = stream()
    with pytest.raises(InDoubt, match="ended before the answer was complete"):
        assemble(found)
    assert source.closed


def streamed_by_google() -> tuple[Any, Source]:
    client, source = by_google()
    return client.models.generate_content_stream(model="m", contents="x"), source


@pytest.mark.parametrize(
    "stream",
    [lambda: by_openai(""), by_responses, by_anthropic, streamed_by_google, by_mistral, by_cohere],
    ids=["openai", "responses", "anthropic", "gemini", "mistral", "cohere"],
)
def test_a_stream_that_ends_before_it_has_said_anything_is_in_doubt(stream):
    """As an answer, an empty list would be recorded, paid for, and used by every later attempt."""
    found, source = stream()
    with pytest.raises(InDoubt, match="ended before the answer was complete"):
        assemble(found)
    assert source.closed


def test_an_async_stream_that_ends_before_it_has_said_anything_is_in_doubt():
    async def by_async_google() -> Any:
        client, _ = by_google()
        return await assemble_async(await client.aio.models.generate_content_stream(model="m", contents="x"))

    async def by_openais_async_client() -> Any:
        return await assemble_async((await by_async_openai(""))[0])

    for ask in (by_async_google, by_openais_async_client):
        with pytest.raises(InDoubt, match="ended before the answer was complete"):
            asyncio.run(ask())


def test_a_stream_that_breaks_off_raises_what_the_package_raises_and_is_closed():
    import openai

    stream, source = by_openai(sse(*CHAT[:3]), breaks=True)
    with pytest.raises(openai.APIConnectionError) as broken:
        assemble(stream)
    assert isinstance(verdict(broken.value), InDoubt)
    assert source.closed


def test_an_error_event_raises_what_the_package_raises_and_is_closed():
    import anthropic

    wrong = {"type": "error", "error": {"type": "overloaded_error", "message": "busy"}}
    stream, source = by_anthropic(*MESSAGES[:4], wrong)
    with pytest.raises(anthropic.APIStatusError) as broken:
        assemble(stream)
    assert isinstance(verdict(broken.value), InDoubt) and "busy" in str(verdict(broken.value))
    assert source.closed


def test_an_async_stream_that_is_cancelled_is_closed():
    async def run() -> Source:
        stream, source = await by_async_openai(sse(*CHAT))
        begun = asyncio.Event()
        inner = stream._iterator

        async def slow() -> AsyncIterator[Any]:
            async for one in inner:
                begun.set()
                yield one
                await asyncio.Event().wait()

        stream._iterator = slow()
        task = asyncio.ensure_future(assemble_async(stream))
        await begun.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        return source

    assert asyncio.run(run()).closed


# Other streams -------------------------------------------------------------------------------------------------------


def words(*parts: Any) -> Iterator[Any]:
    yield from parts


async def async_words(*parts: Any) -> AsyncIterator[Any]:
    for part in parts:
        yield part


def test_a_stream_of_texts_is_a_text_and_one_of_other_values_a_list():
    assert assemble(words("It ", "is.")) == {"text": "It is."}
    assert assemble(words({"a": 1}, {"b": 2})) == [{"a": 1}, {"b": 2}]
    assert assemble(words()) == []
    assert asyncio.run(assemble_async(async_words("It ", "is."))) == {"text": "It is."}
    assert asyncio.run(assemble_async(words("It ", "is."))) == {"text": "It is."}


@pytest.mark.parametrize(
    "value",
    [[], {}, "text", b"bytes", iter([1]), open, 5, None, object()],
    ids=["list", "dict", "text", "bytes", "iterator", "function", "number", "None", "object"],
)
def test_a_value_is_no_stream(value):
    assert not is_stream(value)


def test_a_file_and_an_answer_are_no_streams(tmp_path):
    from openai.types.chat import ChatCompletion

    (tmp_path / "file").write_text("text")
    with open(tmp_path / "file") as file:
        assert not is_stream(file)
    assert not is_stream(ChatCompletion.model_validate(CHAT_ANSWER))


def test_an_async_stream_in_sync_code_is_refused():
    found: Callable[..., Any] = async_words
    with pytest.raises(UsageError, match="async"):
        assemble(found("x"))
