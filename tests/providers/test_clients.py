"""Prepared clients: no retries of their own, headers heard, the given client as it was. Against a local server."""

from __future__ import annotations

import asyncio
import functools
import gc
import inspect
import json
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from holdfast.errors import UsageError
from holdfast.model.outcome import RateLimited
from holdfast.providers import prepare, verdict
from holdfast.providers.headers import listening, report
from holdfast.providers.streams import assemble
from tests.support.clients import GROUP

pytestmark = [pytest.mark.req("P2"), GROUP]

COMPLETION = {
    "id": "c",
    "object": "chat.completion",
    "created": 1,
    "model": "gpt-4o",
    "choices": [{"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": "yes"}}],
    "usage": {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2},
}
MESSAGE = {
    "id": "m",
    "type": "message",
    "role": "assistant",
    "model": "claude",
    "content": [{"type": "text", "text": "yes"}],
    "stop_reason": "end_turn",
    "usage": {"input_tokens": 1, "output_tokens": 1},
}
GEMINI = {"candidates": [{"content": {"role": "model", "parts": [{"text": "yes"}]}, "finishReason": "STOP"}]}
COHERE = {
    "id": "c",
    "finish_reason": "COMPLETE",
    "message": {"role": "assistant", "content": [{"type": "text", "text": "yes"}]},
}
CHUNK = {
    **COMPLETION,
    "choices": [{"index": 0, "finish_reason": "stop", "delta": {"role": "assistant", "content": "yes"}}],
}


class Provider:
    """Answers in the dialect of the path. Counts its requests; says in a header which one this was, and on which connection."""

    def __init__(self) -> None:
        self.requests = 0
        self.connections: set[int] = set()
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"
        threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()

    def end(self) -> None:
        self._server.shutdown()
        self._server.server_close()

    def _handler(provider) -> type[BaseHTTPRequestHandler]:
        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            disable_nagle_algorithm = True

            def do_POST(self) -> None:
                asked = self.rfile.read(int(self.headers.get("Content-Length", 0)))
                provider.requests += 1
                provider.connections.add(self.client_address[1])
                kind, answer = "application/json", json.dumps(self.answer(asked))
                if b'"stream":true' in asked.replace(b" ", b""):
                    kind, answer = "text/event-stream", f"data: {json.dumps(CHUNK)}\n\ndata: [DONE]\n\n"
                self.send_response(429 if b"too much" in asked else 200)
                self.send_header("Content-Type", kind)
                self.send_header("X-Request-Number", str(provider.requests))
                self.send_header("Content-Length", str(len(answer)))
                self.end_headers()
                self.wfile.write(answer.encode())

            def answer(self, asked: bytes) -> Any:
                if b"too much" in asked:
                    return {"error": {"message": "slow down", "type": "x", "code": None}}
                if "completions" in self.path:
                    return COMPLETION
                if "messages" in self.path:
                    return MESSAGE
                return COHERE if "/v2/chat" in self.path else GEMINI

            def log_message(self, *args: Any) -> None: ...

        return Handler


@pytest.fixture(scope="module")
def provider() -> Iterator[Provider]:
    provider = Provider()
    yield provider
    provider.end()


def ask(text: str) -> Any:
    return [{"role": "user", "content": text}]


def openai_client(kind: str, url: str) -> Any:
    import openai

    if "Azure" in kind:
        return getattr(openai, kind)(api_key="none", azure_endpoint=url, api_version="1")
    return getattr(openai, kind)(api_key="none", base_url=f"{url}/v1")


def anthropic_client(kind: str, url: str) -> Any:
    import anthropic

    return getattr(anthropic, kind)(api_key="none", base_url=url)


def google_client(url: str) -> Any:
    from google import genai

    retries = genai.types.HttpRetryOptions(attempts=3, initial_delay=0.01)
    return genai.Client(api_key="none", http_options=genai.types.HttpOptions(base_url=url, retry_options=retries))


def mistral_client(url: str) -> Any:
    from mistralai.client import Mistral
    from mistralai.client.utils import BackoffStrategy, RetryConfig

    retries = RetryConfig("backoff", BackoffStrategy(1, 10, 1.5, 100), True)
    client = Mistral(api_key="none", server_url=url, retry_config=retries)
    assert client.chat is not None  # a part that is bound to the settings of this client
    return client


def cohere_client(kind: str, url: str) -> Any:
    import cohere

    return getattr(cohere, kind)(api_key="none", base_url=url)


def http_client(package: str, kind: str, url: str) -> Any:
    import importlib

    return getattr(importlib.import_module(package), kind)(base_url=url)


def requests_session() -> Any:
    import requests
    from requests.adapters import HTTPAdapter
    from urllib3 import Retry

    session = requests.Session()
    session.mount("http://", HTTPAdapter(max_retries=Retry(2, status_forcelist=[429], allowed_methods=None)))
    return session


def chat(client: Any, text: str, **more: Any) -> Any:
    return client.chat.completions.create(model="m", messages=ask(text), **more)


def message(client: Any, text: str) -> Any:
    return client.messages.create(model="m", max_tokens=5, messages=ask(text))


def post(client: Any, text: str) -> Any:
    async def ask_async() -> Any:
        (await client.post("/x", json={"text": text})).raise_for_status()

    return ask_async() if hasattr(client, "aclose") else client.post("/x", json={"text": text}).raise_for_status()


Making = Callable[[str], Any]
CLIENTS: dict[str, tuple[Making, Callable[[Any, str], Any]]] = {
    **{
        kind: (functools.partial(openai_client, kind), chat)
        for kind in ("OpenAI", "AsyncOpenAI", "AzureOpenAI", "AsyncAzureOpenAI")
    },
    **{kind: (functools.partial(anthropic_client, kind), message) for kind in ("Anthropic", "AsyncAnthropic")},
    "google": (google_client, lambda client, text: client.models.generate_content(model="m", contents=text)),
    "google aio": (google_client, lambda client, text: client.aio.models.generate_content(model="m", contents=text)),
    "Mistral": (mistral_client, lambda client, text: client.chat.complete(model="m", messages=ask(text))),
    "Mistral async": (mistral_client, lambda client, text: client.chat.complete_async(model="m", messages=ask(text))),
    **{
        kind: (functools.partial(cohere_client, kind), lambda client, text: client.chat(model="m", messages=ask(text)))
        for kind in ("ClientV2", "AsyncClientV2")
    },
    **{
        f"{package} {kind}": (functools.partial(http_client, package, kind), post)
        for package in ("httpx", "httpx2")
        for kind in ("Client", "AsyncClient")
    },
    "requests": (
        lambda _: requests_session(),
        lambda client, text: client.post(f"{client.headers['X-Base']}/x", json={"text": text}).raise_for_status(),
    ),
}


def run(call: Callable[[], Any]) -> Any:
    async def wait(found: Any) -> Any:
        return await found

    found = call()
    return asyncio.run(wait(found)) if inspect.isawaitable(found) else found


def made(name: str, provider: Provider) -> tuple[Any, Callable[[Any, str], Any]]:
    making, calling = CLIENTS[name]
    client = making(provider.url)
    if name == "requests":
        client.headers["X-Base"] = provider.url
    return client, calling


@pytest.mark.parametrize("name", CLIENTS)
def test_the_headers_of_a_prepared_client_are_heard(name, provider):
    client, calling = made(name, provider)
    prepared = prepare(client)
    assert type(prepared).__name__ == type(client).__name__
    with listening() as heard:
        assert heard.headers == {}
        run(lambda: calling(prepared, "well?"))
    assert heard.headers["x-request-number"] == str(provider.requests)


@pytest.mark.parametrize("name", CLIENTS)
def test_a_prepared_client_does_not_try_again(name, provider):
    client, calling = made(name, provider)
    prepared, before = prepare(client), provider.requests
    with listening() as heard, pytest.raises(Exception) as refused:  # noqa: PT011
        run(lambda: calling(prepared, "too much"))
    assert provider.requests == before + 1
    assert isinstance(verdict(refused.value), RateLimited)
    assert heard.headers["x-request-number"] == str(provider.requests)


@pytest.fixture
def little_to_collect():
    """A garbage collection looks only through what the test itself has made."""
    gc.freeze()
    yield
    gc.unfreeze()


@pytest.mark.usefixtures("little_to_collect")
@pytest.mark.parametrize("name", CLIENTS)
def test_the_given_client_is_not_changed(name, provider):
    client, calling = made(name, provider)
    prepare(client)
    gc.collect()
    with listening() as heard:
        run(lambda: calling(client, "well?"))
    assert heard.headers == {}
    assert getattr(client, "max_retries", 2) == 2
    if name in ("google", "Mistral", "requests"):  # the others wait for long between their tries
        before = provider.requests
        with pytest.raises(Exception):  # noqa: B017, PT011
            calling(client, "too much")
        assert provider.requests > before + 1, "it still retries by itself"


@pytest.mark.usefixtures("little_to_collect")
@pytest.mark.parametrize("name", [name for name in CLIENTS if "sync" not in name and "aio" not in name])
def test_a_prepared_client_keeps_its_connections_when_the_given_one_is_gone(name, provider):
    client, calling = made(name, provider)
    prepared = prepare(client)
    calling(prepared, "well?")
    before = set(provider.connections)
    del client
    gc.collect()
    calling(prepared, "well?")
    assert provider.connections == before, "its connection was closed"


@pytest.mark.parametrize(
    "name", ["OpenAI", "Anthropic", "google", "Mistral", "ClientV2", "httpx Client", "httpx2 Client"]
)
def test_a_prepared_client_shares_the_connections_of_the_given_one(name, provider):
    client, calling = made(name, provider)
    calling(client, "well?")
    before = set(provider.connections)
    calling(prepare(client), "well?")
    assert provider.connections == before


def test_streams_of_a_prepared_client_are_heard(provider):
    client = prepare(openai_client("OpenAI", provider.url))
    with listening() as heard:
        answer = assemble(chat(client, "well?", stream=True))
    assert answer["choices"][0]["message"]["content"] == "yes"
    assert heard.headers["x-request-number"] == str(provider.requests)


def test_functions_of_litellm_are_prepared(provider):
    import litellm

    more = {"model": "openai/gpt-4o", "api_key": "none", "api_base": f"{provider.url}/v1"}
    completion, acompletion = prepare(litellm.completion), prepare(litellm.acompletion)
    assert inspect.iscoroutinefunction(acompletion) and completion.__name__ == "completion"
    with listening() as heard:
        completion(messages=ask("well?"), **more)
    assert heard.headers["x-request-number"] == str(provider.requests)
    with listening() as heard:
        asyncio.run(acompletion(messages=ask("well?"), **more))
    assert heard.headers["x-request-number"] == str(provider.requests)
    before = provider.requests
    with pytest.raises(litellm.RateLimitError):
        completion(messages=ask("too much"), num_retries=2, **more)
    assert provider.requests == before + 1


@pytest.mark.parametrize(
    "value", [None, 5, "openai", object(), print, len], ids=["None", "number", "text", "object", "print", "len"]
)
def test_anything_else_is_refused_with_what_is_taken(value):
    with pytest.raises(UsageError, match="give a client of openai, anthropic"):
        prepare(value)


def test_a_method_of_a_client_is_refused(provider):
    client = openai_client("OpenAI", provider.url)
    with pytest.raises(UsageError, match="create is a function"):
        prepare(client.chat.completions.create)


# Who hears what ------------------------------------------------------------------------------------------------------


def test_the_latest_headers_count_with_names_in_lower_case():
    with listening() as heard:
        report({"X-One": "1"})
        report({b"X-Two": b"2"})
        report(None)
        assert heard.headers == {"x-two": "2"}
    report({"X-Three": "3"})
    assert heard.headers == {"x-two": "2"}


def test_calls_at_the_same_time_hear_their_own_headers():
    async def call(number: int, begun: asyncio.Event, last: asyncio.Event) -> Any:
        with listening() as heard:
            begun.set()
            await last.wait()
            await asyncio.to_thread(report, {"number": str(number)})
            return heard.headers

    async def both() -> Any:
        events = [asyncio.Event(), asyncio.Event()]
        return await asyncio.gather(call(1, events[0], events[1]), call(2, events[1], events[0]))

    assert asyncio.run(both()) == [{"number": "1"}, {"number": "2"}]


def test_an_inner_block_hears_for_itself():
    with listening() as outer:
        with listening() as inner:
            report({"a": "1"})
        report({"b": "2"})
    assert (outer.headers, inner.headers) == ({"b": "2"}, {"a": "1"})


class Odd:
    def items(self) -> Any:
        raise RuntimeError("no headers")


def test_headers_that_cannot_be_read_do_not_disturb_the_call():
    with listening() as heard:
        report(Odd())
    assert heard.headers == {}
