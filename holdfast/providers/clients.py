"""A client made ready for paid calls: a copy that does not retry by itself, and whose response headers are heard.

A retry inside of a client hides how the first try ended, and waits while others go on; here a pause is for everyone who
uses the resource. The given client is not changed; the copy shares its connections, and closing one closes both.
"""

from __future__ import annotations

import copy
import functools
import inspect
import sys
from collections.abc import Callable
from typing import Any, TypeVar, cast

from holdfast.errors import UsageError
from holdfast.providers.headers import report

C = TypeVar("C")

_TAKES = (
    "give a client of openai, anthropic, google-genai, mistralai or cohere, a client of httpx, "
    "a session of requests, or a function of litellm"
)


#: Where copies that share connections, and prepared functions, keep what they were made of.
_ORIGINAL = "holdfast_original"


def is_prepared_function(function: Callable[..., Any]) -> bool:
    """Whether `prepare` has made this function: it does not retry, but its headers may not be available."""
    return hasattr(function, _ORIGINAL)


def prepare(client: C) -> C:
    """A copy of a client, or of a litellm function, without retries of its own and with its response headers heard.

    Takes clients of openai (Azure as well), anthropic, google-genai, mistralai, cohere and httpx, sync and async, and
    sessions of requests.
    """
    if inspect.isroutine(client):
        if str(getattr(client, "__module__", "")).partition(".")[0] == "litellm":
            return cast(C, _of_litellm(client))
        raise UsageError(f"prepare: {getattr(client, '__qualname__', client)} is a function; {_TAKES}")
    modules = [one.__module__ for one in type(client).__mro__]
    for package, has, preparing in _PREPARING:
        is_of_it = any(module == package or module.startswith(f"{package}.") for module in modules)
        if is_of_it and hasattr(client, has):
            return cast(C, preparing(client))
    raise UsageError(f"prepare: a value of type {type(client).__name__} is not known; {_TAKES}")


# HTTP clients ----------------------------------------------------------------------------------------------------------


def _of_httpx(client: Any) -> Any:
    """A shallow copy has the same transports, and so the same connections."""
    hearing = copy.copy(client)
    kind = type(client)
    if hasattr(kind, "__del__"):
        # The clients inside of openai close their connections when they are collected: here these belong to both.
        hearing.__class__ = type(kind.__name__, (kind,), {"__del__": lambda _: None, "__module__": kind.__module__})
    hearing.holdfast_original = client
    hooks = client.event_hooks
    hear = _hear_async if hasattr(client, "aclose") else _hear
    hearing.event_hooks = {**hooks, "response": [*hooks.get("response", ()), hear]}
    return hearing


def _hear(response: Any, *_: Any, **__: Any) -> None:
    report(response.headers)


async def _hear_async(response: Any) -> None:
    report(response.headers)


def _of_requests(session: Any) -> Any:
    hearing = copy.copy(session)
    before = session.hooks.get("response") or []
    hearing.hooks = {**session.hooks, "response": [*([before] if callable(before) else before), _hear]}
    hearing.adapters = type(session.adapters)()
    for prefix, adapter in session.adapters.items():
        retries: Any = getattr(adapter, "max_retries", None)
        if getattr(retries, "total", 0):
            adapter = copy.copy(adapter)
            adapter.max_retries = type(retries)(0, read=False)
        hearing.adapters[prefix] = adapter
    return hearing


# Packages of providers -------------------------------------------------------------------------------------------------


def _of_openai(client: Any) -> Any:
    # There is no public name for the HTTP client that a copy is to share.
    return client.with_options(max_retries=0, http_client=_of_httpx(client._client))


def _of_anthropic(client: Any) -> Any:
    if not hasattr(client, "with_middleware"):
        return _of_openai(client)

    def hear(request: Any, call_next: Callable[[Any], Any]) -> Any:
        response = call_next(request)
        report(response.headers)
        return response

    async def hear_async(request: Any, call_next: Callable[[Any], Any]) -> Any:
        response = await call_next(request)
        report(response.headers)
        return response

    is_async = inspect.iscoroutinefunction(type(client).close)
    return client.with_options(max_retries=0).with_middleware(hear_async if is_async else hear)


def _of_google(client: Any) -> Any:
    """A client of google-genai has no copy of its own: a new one is made with the same settings.

    Its async half goes through httpx, since aiohttp would repeat a call whose connection broke.
    """
    inner = client._api_client
    sync_http, async_http = inner._httpx_client, inner._async_httpx_client
    if async_http is None:
        packages = {one.__module__.partition(".")[0] for one in type(sync_http).__mro__}
        http: Any = sys.modules["httpx2" if "httpx2" in packages else "httpx"]
        async_http = http.AsyncClient(**inner._async_httpx_client_args)
    options = inner._http_options.model_copy(
        update={
            "httpx_client": _of_httpx(sync_http),
            "httpx_async_client": _of_httpx(async_http),
            "retry_options": None,
        }
    )
    hearing = type(client)(
        vertexai=inner.vertexai,
        api_key=inner.api_key,
        credentials=None if inner.api_key else inner._credentials,
        project=inner.project if inner.vertexai and not inner.api_key else None,
        location=inner.location if inner.vertexai and not inner.api_key else None,
        http_options=options,
    )
    hearing.holdfast_original = client
    return hearing


def _of_mistral(client: Any) -> Any:
    settings = copy.copy(client.sdk_configuration)
    settings.client = _of_httpx(settings.client)
    settings.async_client = _of_httpx(settings.async_client)
    settings.retry_config = None
    hearing = copy.copy(client)
    for name, value in list(vars(hearing).items()):
        if hasattr(value, "sdk_configuration") and value is not client:
            del vars(hearing)[name]  # a part that was made with the settings of the original
    hearing.sdk_configuration = settings
    hearing.holdfast_original = client
    return hearing


def _of_cohere(client: Any) -> Any:
    inner = client._client_wrapper
    hearing = type(client)(
        api_key=inner._token,
        base_url=inner.get_base_url(),
        client_name=inner._client_name,
        timeout=inner.get_timeout(),
        max_retries=0,
        httpx_client=_of_httpx(inner.httpx_client.httpx_client),
    )
    hearing.holdfast_original = client
    return hearing


def _of_litellm(function: Callable[..., Any]) -> Callable[..., Any]:
    """litellm is functions: their retries are off, and the headers are those that it keeps with an answer. It keeps none of
    Gemini, nor of streams of Mistral, and a client of its own class would have to be given to each provider to hear them.
    """
    off = {"max_retries": 0, "num_retries": 0}

    if inspect.iscoroutinefunction(function):

        @functools.wraps(function)
        async def call_async(*args: Any, **kwargs: Any) -> Any:
            return _heard_of_litellm(await function(*args, **{**kwargs, **off}))

        setattr(call_async, _ORIGINAL, function)
        return call_async

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        return _heard_of_litellm(function(*args, **{**kwargs, **off}))

    setattr(call, _ORIGINAL, function)
    return call


def _heard_of_litellm(answer: Any) -> Any:
    report(getattr(answer, "_response_headers", None))
    kept = getattr(answer, "_hidden_params", None)
    if isinstance(kept, dict) and isinstance(headers := kept.get("additional_headers"), dict):
        report({str(name).removeprefix("llm_provider-"): value for name, value in headers.items()})
    return answer


#: The package, what a client of it has, and what prepares it. Packages of providers first: their HTTP clients are httpx's.
_PREPARING: list[tuple[str, str, Callable[[Any], Any]]] = [
    ("openai", "with_options", _of_openai),
    ("anthropic", "with_options", _of_anthropic),
    ("google.genai", "models", _of_google),
    ("mistralai", "sdk_configuration", _of_mistral),
    ("cohere", "_client_wrapper", _of_cohere),
    ("httpx2", "event_hooks", _of_httpx),
    ("httpx", "event_hooks", _of_httpx),
    ("requests", "adapters", _of_requests),
]
