"""The clients of model providers, as people call them: unmodified, pointed at another address, their own retries off.

    with Clients(provider.url) as clients:
        clients["openai chat"].ask("well?", "sync")          # the answer, or what that client raises
        clients["openai chat"].ask("well?", "async stream")  # the list of what the stream brings
        clients["openai chat"].call("well?", "sync")         # the function and its arguments, for others to call

Loading them takes seconds and much memory: tests that need them are in GROUP, which runs in one process.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Awaitable, Callable
from contextvars import copy_context
from dataclasses import dataclass
from typing import Any

from tests.support.clients import GROUP

__all__ = ["GROUP", "MODES", "WAYS", "Clients", "Way"]

#: Longer than any answer takes on a busy machine.
PATIENT_SECONDS = 60.0
MODES = ("sync", "async", "stream", "async stream")
#: Every way of calling: its dialect, its model, whether it can stream.
WAYS: dict[str, tuple[str, str, bool]] = {
    "openai chat": ("openai", "gpt-5-mini", True),
    "openai responses": ("openai", "gpt-5-mini", True),
    "openai embeddings": ("openai", "text-embedding-3-small", False),
    "anthropic": ("anthropic", "claude-haiku-4-5", True),
    "gemini": ("gemini", "gemini-2.5-flash", True),
    "gemini embeddings": ("gemini", "gemini-embedding-001", False),
    "mistral": ("mistral", "mistral-small-latest", True),
    "litellm openai": ("openai", "gpt-5-mini", True),
    "litellm anthropic": ("anthropic", "claude-haiku-4-5", True),
    "litellm gemini": ("gemini", "gemini-2.5-flash", True),
    "litellm mistral": ("mistral", "mistral-small-latest", True),
}
_MAX_TOKENS = 100
#: A function of a client, and what it is called with.
Call = tuple[Callable[..., Any], dict[str, Any]]
Reader = Callable[[Any], Any]
AsyncReader = Callable[[Any], Awaitable[Any]]


@dataclass(frozen=True, slots=True)
class Way:
    """One way of calling. What `begin` returns is awaited, iterated or taken as it is."""

    name: str
    dialect: str
    model: str
    _call: Callable[[str, str, float], Call]
    run: Callable[[Any], Any]

    def call(self, prompt: str, mode: str = "sync", seconds: float = PATIENT_SECONDS) -> Call:
        """What is to be called in a mode, and with what."""
        return self._call(prompt, mode, seconds)

    def begin(self, prompt: str, mode: str, seconds: float) -> Any:
        function, asked = self.call(prompt, mode, seconds)
        return function(**asked)

    def ask(self, prompt: str, mode: str = "sync", seconds: float = PATIENT_SECONDS) -> Any:
        """Call, and read all of it."""
        if "async" in mode:
            return self.run(self._ask_async(prompt, mode, seconds))
        answer = self.begin(prompt, mode, seconds)
        return list(answer) if mode == "stream" else answer

    async def _ask_async(self, prompt: str, mode: str, seconds: float) -> Any:
        answer = await self.begin(prompt, mode, seconds)
        return [one async for one in answer] if mode == "async stream" else answer

    def read(
        self, prompt: str, mode: str, seconds: float = PATIENT_SECONDS, *, by: Reader, by_async: AsyncReader
    ) -> Any:
        """Call, and let one of these functions read the stream."""
        if mode == "stream":
            return by(self.begin(prompt, mode, seconds))

        async def ask() -> Any:
            return await by_async(await self.begin(prompt, mode, seconds))

        return self.run(ask())


class Clients:
    """All of them, pointed at one address; one event loop for those that need one. A client is made when it is first used,
    and made `ready`."""

    def __init__(self, url: Callable[[str], str], ready: Callable[[Any], Any] = lambda client: client) -> None:
        self._url = url
        self._ready = ready
        self._made: dict[str, Any] = {}
        # Threads that load packages at the same time see halves of them.
        self._one_at_a_time = threading.RLock()

    def __enter__(self) -> Clients:
        self._runner = asyncio.Runner()
        self._runner.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        self._runner.run(self._close())
        self._runner.__exit__(None, None, None)

    def __getitem__(self, name: str) -> Way:
        dialect, model, _ = WAYS[name]
        kind = name.replace(" ", "_") if not name.startswith("litellm") else "litellm"
        given = (dialect, model) if kind == "litellm" else (model,)

        def call(*asked: Any) -> Call:
            with self._one_at_a_time:
                return getattr(self, f"_{kind}")(*given, *asked)

        return Way(name, dialect, model, call, self.run)

    def run(self, awaitable: Any) -> Any:
        """In the caller's context: what is set there is seen by the call."""

        async def wait() -> Any:
            return await awaitable

        return self._runner.run(wait(), context=copy_context())

    async def _close(self) -> None:
        """Connections that outlive their event loop complain when they are collected."""
        for client in self._made.values():
            if hasattr(client, "aio"):
                await client.aio.aclose()
            elif hasattr(client, "__aexit__"):
                await client.__aexit__(None, None, None)

    def _once(self, name: str, make: Callable[[], Any]) -> Any:
        if name not in self._made:
            self._made[name] = self._ready(make())
        return self._made[name]

    # OpenAI -----------------------------------------------------------------------------------------------------------

    def openai(self, mode: str) -> Any:
        import openai

        name = "AsyncOpenAI" if "async" in mode else "OpenAI"
        address = f"{self._url('openai')}/v1"
        return self._once(name, lambda: getattr(openai, name)(api_key="none", base_url=address, max_retries=0))

    def _openai_chat(self, model: str, prompt: str, mode: str, seconds: float) -> Call:
        streamed = {"stream": True, "stream_options": {"include_usage": True}} if "stream" in mode else {}
        create = self.openai(mode).chat.completions.create
        return create, {"model": model, "messages": _messages(prompt), "timeout": _reading(seconds), **streamed}

    def _openai_responses(self, model: str, prompt: str, mode: str, seconds: float) -> Call:
        create = self.openai(mode).responses.create
        return create, {"model": model, "input": prompt, "stream": "stream" in mode, "timeout": _reading(seconds)}

    def _openai_embeddings(self, model: str, prompt: str, mode: str, seconds: float) -> Call:
        create = self.openai(mode).embeddings.create
        return create, {"model": model, "input": [prompt], "timeout": _reading(seconds)}

    # Anthropic --------------------------------------------------------------------------------------------------------

    def anthropic(self, mode: str) -> Any:
        import anthropic

        name = "AsyncAnthropic" if "async" in mode else "Anthropic"
        address = self._url("anthropic")
        return self._once(name, lambda: getattr(anthropic, name)(api_key="none", base_url=address, max_retries=0))

    def _anthropic(self, model: str, prompt: str, mode: str, seconds: float) -> Call:
        create = self.anthropic(mode).messages.create
        asked = {"model": model, "messages": _messages(prompt), "max_tokens": _MAX_TOKENS}
        return create, {**asked, "stream": "stream" in mode, "timeout": _reading(seconds)}

    # Gemini -----------------------------------------------------------------------------------------------------------

    def gemini(self) -> Any:
        from google import genai

        # Without these options its async client tries once more, after seconds, when a connection breaks.
        options: Any = {"base_url": self._url("gemini"), "retry_options": {"attempts": 1}}
        return self._once("genai", lambda: genai.Client(api_key="none", http_options=options))

    def _gemini(self, model: str, prompt: str, mode: str, seconds: float) -> Call:
        client = self.gemini()
        models = client.aio.models if "async" in mode else client.models
        ask = models.generate_content_stream if "stream" in mode else models.generate_content
        config = {"http_options": {"timeout": int(seconds * 1000)}}
        return ask, {"model": model, "contents": prompt, "config": config}

    def _gemini_embeddings(self, model: str, prompt: str, mode: str, seconds: float) -> Call:
        client = self.gemini()
        models = client.aio.models if "async" in mode else client.models
        config = {"http_options": {"timeout": int(seconds * 1000)}}
        return models.embed_content, {"model": model, "contents": prompt, "config": config}

    # Mistral ----------------------------------------------------------------------------------------------------------

    def mistral(self) -> Any:
        from mistralai.client import Mistral

        return self._once("Mistral", lambda: Mistral(api_key="none", server_url=self._url("mistral")))

    def _mistral(self, model: str, prompt: str, mode: str, seconds: float) -> Call:
        names = {"sync": "complete", "async": "complete_async", "stream": "stream", "async stream": "stream_async"}
        ask = getattr(self.mistral().chat, names[mode])
        return ask, {"model": model, "messages": _messages(prompt), "timeout_ms": int(seconds * 1000)}

    # LiteLLM ----------------------------------------------------------------------------------------------------------

    def _litellm(self, dialect: str, model: str, prompt: str, mode: str, seconds: float) -> Call:
        litellm = load_litellm()
        version = {"openai": "/v1", "mistral": "/v1", "gemini": "/v1beta", "anthropic": ""}[dialect]
        asked: dict[str, Any] = {
            "model": f"{dialect}/{model}",
            "messages": _messages(prompt),
            "api_base": f"{self._url(dialect)}{version}",
            "api_key": "none",
            "timeout": seconds,
            "max_retries": 0,
            "num_retries": 0,
        }
        if "stream" in mode:
            asked |= {"stream": True, "stream_options": {"include_usage": True}}
        name = "acompletion" if "async" in mode else "completion"
        return self._once(name, lambda: getattr(litellm, name)), asked

    # As their packages make them --------------------------------------------------------------------------------------

    def usual(self, package: str, mode: str) -> Any:
        """A client, or a function of litellm, about whose retries nothing was said."""
        if package == "litellm":
            litellm = load_litellm()
            return litellm.acompletion if mode == "async" else litellm.completion
        return self._once(f"usual {package} {mode}", lambda: self._usual(package, mode))

    def _usual(self, package: str, mode: str) -> Any:
        if package == "openai":
            import openai

            kind: Any = openai.AsyncOpenAI if mode == "async" else openai.OpenAI
            return kind(api_key="none", base_url=f"{self._url('openai')}/v1")
        if package == "anthropic":
            import anthropic

            kind = anthropic.AsyncAnthropic if mode == "async" else anthropic.Anthropic
            return kind(api_key="none", base_url=self._url("anthropic"))
        if package == "gemini":
            from google import genai

            options: Any = {"base_url": self._url("gemini")}
            return genai.Client(api_key="none", http_options=options)
        from mistralai.client import Mistral

        return Mistral(api_key="none", server_url=self._url("mistral"))

    def usual_call(self, client: Any, package: str, mode: str, prompt: str) -> Any:
        """The shortest call that each of them has."""
        if package == "openai":
            return client.chat.completions.create(model="gpt-5-mini", messages=_messages(prompt))
        if package == "anthropic":
            return client.messages.create(model="claude-haiku-4-5", messages=_messages(prompt), max_tokens=_MAX_TOKENS)
        if package == "gemini":
            models = client.aio.models if mode == "async" else client.models
            return models.generate_content(model="gemini-2.5-flash", contents=prompt)
        if package == "mistral":
            ask = client.chat.complete_async if mode == "async" else client.chat.complete
            return ask(model="mistral-small-latest", messages=_messages(prompt))
        address = f"{self._url('openai')}/v1"
        return client(model="openai/gpt-5-mini", messages=_messages(prompt), api_base=address, api_key="none")


def load_litellm() -> Any:
    """It looks for prices on the net when it is loaded, and prints advice with every error."""
    os.environ.setdefault("LITELLM_LOCAL_MODEL_COST_MAP", "True")
    import litellm

    litellm.suppress_debug_info = True
    return litellm


def _messages(prompt: str) -> list[dict[str, Any]]:
    return [{"role": "user", "content": prompt}]


def _reading(seconds: float) -> Any:
    """A short time to wait for an answer must not shorten the time to connect."""
    import httpx2

    return httpx2.Timeout(PATIENT_SECONDS, read=seconds)
