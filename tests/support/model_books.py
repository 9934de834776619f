"""A pipeline for worker processes that call a model: with the client of OpenAI, sync and async, plain and streamed."""

from __future__ import annotations

from decimal import Decimal
from functools import cache
from typing import Any

from holdfast import Backoff, Context, Item, Pipeline
from holdfast.providers import prepare
from tests.support.model_provider.asked import PRICES, Asked, answer_to
from tests.support.model_provider.provider import address_of

MODEL = "gpt-5-mini"
#: Amounts are in thousandths of what the provider charges in: every price is then a whole number of millionths.
THOUSANDTHS = 1000
_PRICE = PRICES[MODEL]
_QUICK = Backoff(first_seconds=0.01, most_seconds=0.02)
_SETTINGS: Any = {"backoff": _QUICK, "max_attempts": 1000}
STAGES = ("at_once", "awaited")

prompts = Pipeline(
    "prompts",
    prices={
        MODEL: {
            "in": str(_PRICE.tokens_in * THOUSANDTHS),
            "out": str(_PRICE.tokens_out * THOUSANDTHS),
            "cached": str(_PRICE.cached * THOUSANDTHS),
        }
    },
)


def prompt_of(key: str, stage: str, fault: str) -> str:
    """No other call has it. The fault strikes the first request only."""
    return f"{key} {stage}?" + (f" [[fault:{fault} first=1]]" if fault else "")


def price_of(prompt: str) -> Decimal:
    return answer_to(Asked("chat", MODEL, prompt)).amount(MODEL) * THOUSANDTHS


@cache
def client(kind: str) -> Any:
    """Loaded by the worker that needs it, not by the test."""
    import openai

    return prepare(getattr(openai, kind)(api_key="none", base_url=f"{address_of('openai')}/v1"))


def _call(item: Item, ctx: Context, stage: str, kind: str) -> Any:
    prompt = prompt_of(item.key, stage, item.data["fault"])
    asked: dict[str, Any] = {"model": MODEL, "messages": [{"role": "user", "content": prompt}]}
    if item.data["stream"]:
        asked |= {"stream": True, "stream_options": {"include_usage": True}}
    options = ctx.options(estimate=price_of(prompt))
    return options.call("answer", client(kind).chat.completions.create, **asked)


@prompts.stage(**_SETTINGS)
def at_once(item: Item, ctx: Context) -> Any:
    return _call(item, ctx, "at_once", "OpenAI")["choices"][0]["message"]["content"]


@prompts.stage(**_SETTINGS)
async def awaited(item: Item, ctx: Context) -> Any:
    return (await _call(item, ctx, "awaited", "AsyncOpenAI"))["choices"][0]["message"]["content"]
