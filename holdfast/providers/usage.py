"""What an answer used: tokens read and written, from the JSON form of a provider's answer.

Providers count differently: OpenAI's cached tokens are a part of the prompt, Anthropic's stand beside the input, Gemini's
thoughts stand beside the candidates. Here `tokens_in` is everything that was read, `tokens_out` everything that was written,
and the other numbers are parts of these two.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple


@dataclass(frozen=True, slots=True)
class Usage:
    model: str
    tokens_in: int = 0
    tokens_out: int = 0
    #: Parts of `tokens_in`: read from a cache, and written to one.
    cached_in: int = 0
    cache_write: int = 0
    #: A part of `tokens_out`.
    reasoning: int = 0
    #: As genai-prices calls it; empty where several providers answer in the same form.
    provider: str = ""

    @property
    def facts(self) -> Mapping[str, str | int]:
        """What the ledger keeps of it, without what is zero."""
        told: dict[str, str | int] = {
            "model": self.model,
            "tokens_in": self.tokens_in,
            "tokens_out": self.tokens_out,
            "tokens_cached": self.cached_in,
            "tokens_cache_write": self.cache_write,
            "tokens_reasoning": self.reasoning,
        }
        return {name: value for name, value in told.items() if value}


class _Form(NamedTuple):
    """One way to count. Of each row the first number that is there counts; rows are added."""

    provider: str
    #: Recognised by this.
    key: str
    tokens_in: tuple[tuple[str, ...], ...]
    tokens_out: tuple[tuple[str, ...], ...]
    cached: tuple[str, ...] = ()
    cache_write: tuple[str, ...] = ()
    reasoning: tuple[str, ...] = ()


_CACHED = ("cache_read_input_tokens", "prompt_tokens_details.cached_tokens", "prompt_cache_hit_tokens")
_WRITTEN = (
    "cache_creation_input_tokens",
    "cache_write_input_tokens",
    "prompt_tokens_details.cache_write_tokens",
    "prompt_tokens_details.cache_creation_tokens",
)
_THOUGHT = "output_tokens_details.reasoning_tokens", "output_tokens_details.thinking_tokens"
#: Keys in snake case; those of Google's JSON and of Bedrock are translated.
_FORMS = [
    _Form(
        "google",
        "prompt_token_count",
        (("prompt_token_count",), ("tool_use_prompt_token_count",)),
        (("candidates_token_count", "response_token_count"), ("thoughts_token_count",)),
        ("cached_content_token_count",),
        (),
        ("thoughts_token_count",),
    ),
    _Form(
        "google",
        "total_input_tokens",
        (("total_input_tokens",), ("total_tool_use_tokens",)),
        (("total_output_tokens",), ("total_thought_tokens",)),
        ("total_cached_tokens",),
        (),
        ("total_thought_tokens",),
    ),
    _Form(
        "",
        "prompt_tokens",
        (("prompt_tokens",),),
        (("completion_tokens",),),
        _CACHED,
        _WRITTEN,
        ("completion_tokens_details.reasoning_tokens",),
    ),
    _Form(
        "cohere",
        "billed_units",
        (("billed_units.input_tokens",),),
        (("billed_units.output_tokens",),),
        ("cached_tokens",),
    ),
    _Form("cohere", "tokens", (("tokens.input_tokens",),), (("tokens.output_tokens",),), ("cached_tokens",)),
]
_BESIDE = _Form(
    "anthropic",
    "input_tokens",
    (("input_tokens",), _CACHED[:1], _WRITTEN[:2]),
    (("output_tokens",),),
    _CACHED[:1],
    _WRITTEN[:2],
    _THOUGHT,
)
_WITHIN = _Form(
    "openai",
    "input_tokens",
    (("input_tokens",),),
    (("output_tokens",),),
    ("input_tokens_details.cached_tokens",),
    ("input_tokens_details.cache_write_tokens",),
    _THOUGHT,
)
_CAPITAL = re.compile(r"(?<=[a-z0-9])([A-Z])")
_MODELS = ("model", "model_version", "modelVersion")


def usage(answer: Any) -> Usage | None:
    """What an answer in its JSON form says that it used; None if it does not say."""
    if not isinstance(answer, Mapping):
        return None
    given = _given(answer)
    model = next((value for name in _MODELS if isinstance(value := answer.get(name), str)), "").removeprefix("models/")
    if given is None:
        # A moderation is free, and says so by saying nothing.
        is_moderation = model and str(answer.get("id", "")).startswith("modr")
        return Usage(model, provider="openai") if is_moderation else None
    told = _snake(given)
    form = _form(answer, given, told)
    if form is None:
        return None
    provider = "aws" if "inputTokens" in given else form.provider
    tokens_out, reasoning = _sum(told, form.tokens_out), _first(told, form.reasoning)
    tokens_in = _sum(told, form.tokens_in)
    if not form.provider and reasoning and told.get("total_tokens") == tokens_in + tokens_out + reasoning:
        tokens_out += reasoning  # xAI and others count it beside the completion
    cached = min(_first(told, form.cached), tokens_in)
    written = min(_first(told, form.cache_write), tokens_in - cached)
    return Usage(model, tokens_in, tokens_out, cached, written, min(reasoning, tokens_out), provider)


def _given(answer: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """Where an answer keeps its counts; the rerank and embed calls of cohere call it `meta`."""
    for name in ("usage", "usage_metadata", "usageMetadata", "meta"):
        if isinstance(found := answer.get(name), Mapping):
            return found
    return None


def _form(answer: Mapping[str, Any], given: Mapping[str, Any], told: Mapping[str, Any]) -> _Form | None:
    for form in _FORMS:
        if told.get(form.key) is not None:
            return form
    if "input_tokens" not in told:
        return None
    is_beside = answer.get("type") == "message" or "inputTokens" in given or "cache_read_input_tokens" in told
    return _BESIDE if is_beside else _WITHIN


def _snake(value: Any) -> Any:
    if not isinstance(value, Mapping):
        return value
    return {_CAPITAL.sub(lambda found: f"_{found[1].lower()}", str(name)): _snake(one) for name, one in value.items()}


def _sum(told: Mapping[str, Any], rows: tuple[tuple[str, ...], ...]) -> int:
    return sum(_first(told, row) for row in rows)


def _first(told: Mapping[str, Any], paths: tuple[str, ...]) -> int:
    for path in paths:
        value: Any = told
        for name in path.split("."):
            value = value.get(name) if isinstance(value, Mapping) else None
        if isinstance(value, (int, float)) and not isinstance(value, bool) and 0 < value < 2**53:
            return int(value)
    return 0
