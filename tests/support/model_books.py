"""A pipeline for worker processes that call models: through the clients of five packages, sync and async, plain and streamed.

What goes wrong with a call, the way it goes, and whether it limits its answer is said by its item."""

from __future__ import annotations

from collections.abc import Mapping
from decimal import Decimal
from functools import cache
from typing import Any

from holdfast import Backoff, Context, Item, Pipeline
from holdfast.providers import prepare
from tests.support.model_clients import WAYS, Clients
from tests.support.model_provider.asked import PRICES, Answer, Asked, Price, answer_to
from tests.support.model_provider.provider import address_of

#: Amounts are in thousandths of what the provider charges in: every price is then a whole number of millionths.
THOUSANDTHS = 1000
#: What the stage `awaited` expects of a call: more than any of them costs.
EXPECTED = Decimal(100)
#: How long an answer may be, where the call says so: longer than all of them.
LIMIT = 100
#: Anthropic's client asks for a limit, and Gemini's takes it elsewhere than in an argument of its own.
ALWAYS_LIMITED, NEVER_LIMITED = ("anthropic",), ("gemini",)
STAGES = ("at_once", "awaited")
_ROUTES = {"openai": "chat", "anthropic": "messages", "gemini": "generate", "mistral": "chat"}
_QUICK = Backoff(first_seconds=0.01, most_seconds=0.02)
_SETTINGS: Any = {"backoff": _QUICK, "max_attempts": 1000}


def _row(price: Price) -> dict[str, str]:
    row = {"in": price.tokens_in, "out": price.tokens_out, "cached": price.cached, "cache_write": price.written}
    return {name: str(amount * THOUSANDTHS) for name, amount in row.items() if amount is not None}


#: An expectation needs something that it counts against. This limits nothing here.
RESOURCES: dict[str, dict[str, Any]] = {"model": {"concurrency": 100}}
prompts = Pipeline("prompts", prices={model: _row(price) for model, price in PRICES.items()}, resources=RESOURCES)


def prompt_of(key: str, stage: str, fault: str) -> str:
    """No other call has it. The fault strikes the first request only."""
    return f"{key} {stage}?" + (f" [[fault:{fault} first=1]]" if fault else "")


def answer_of(way: str, prompt: str) -> Answer:
    dialect, model, _ = WAYS[way]
    return answer_to(Asked(_ROUTES[dialect], model, prompt))


def price_of(way: str, prompt: str) -> Decimal:
    """What the provider charges for the whole answer."""
    return answer_of(way, prompt).amount(WAYS[way][1]) * THOUSANDTHS


def is_limited(item: Mapping[str, Any]) -> bool:
    """Does the call say how long the answer may be?"""
    way = item["way"]
    return way in ALWAYS_LIMITED or (bool(item["limited"]) and way not in NEVER_LIMITED)


@cache
def clients() -> Clients:
    """Each is loaded by the worker that needs it, not by the test."""
    return Clients(address_of, ready=prepare)


def _call(item: Item, ctx: Context, stage: str, mode: str) -> Any:
    """Nothing is said about its price but what `prices`, the limit and the stage say."""
    way = item.data["way"]
    prompt = prompt_of(item.key, stage, item.data["fault"])
    function, asked = clients()[way].call(prompt, f"{mode} stream".strip() if item.data["stream"] else mode or "sync")
    if is_limited(item.data):
        asked["max_tokens"] = LIMIT
    return ctx.call("answer", function, **asked)


def text_of(answer: dict[str, Any]) -> str:
    """The words of an answer, in the form of its dialect."""
    if "choices" in answer:
        return str(answer["choices"][0]["message"]["content"])
    parts = answer["candidates"][0]["content"]["parts"] if "candidates" in answer else answer["content"]
    return "".join(part["text"] for part in parts)


@prompts.stage(**_SETTINGS)
def at_once(item: Item, ctx: Context) -> str:
    return text_of(_call(item, ctx, "at_once", ""))


@prompts.stage(**_SETTINGS, resource="model", estimate=EXPECTED)
async def awaited(item: Item, ctx: Context) -> str:
    return text_of(await _call(item, ctx, "awaited", "async"))
