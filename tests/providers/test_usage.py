"""What answers used, in the JSON form of each provider's own classes."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast.model.paid_call import CallFacts
from holdfast.providers.usage import Usage, usage
from tests.support.clients import GROUP

pytestmark = [pytest.mark.req("P2"), GROUP]


def chat(**counts: Any) -> Any:
    return {"id": "c", "object": "chat.completion", "model": "gpt-5-mini", "choices": [], "usage": counts}


ROWS: list[tuple[Any, Usage | None]] = [
    # OpenAI: cached and reasoning tokens are parts.
    (
        chat(
            prompt_tokens=1000,
            completion_tokens=300,
            total_tokens=1300,
            prompt_tokens_details={"cached_tokens": 600, "cache_write_tokens": 100, "audio_tokens": None},
            completion_tokens_details={"reasoning_tokens": 200},
        ),
        Usage("gpt-5-mini", 1000, 300, 600, 100, 200),
    ),
    (chat(prompt_tokens=5, completion_tokens=2, total_tokens=7), Usage("gpt-5-mini", 5, 2)),
    (
        {"object": "list", "model": "text-embedding-3-small", "usage": {"prompt_tokens": 8, "total_tokens": 8}},
        Usage("text-embedding-3-small", 8),
    ),
    (
        {
            "object": "response",
            "model": "gpt-5",
            "usage": {
                "input_tokens": 90,
                "input_tokens_details": {"cached_tokens": 64, "cache_write_tokens": 8},
                "output_tokens": 40,
                "output_tokens_details": {"reasoning_tokens": 30},
                "total_tokens": 130,
            },
        },
        Usage("gpt-5", 90, 40, 64, 8, 30, "openai"),
    ),
    (
        {"id": "modr-1", "model": "omni-moderation-latest", "results": []},
        Usage("omni-moderation-latest", provider="openai"),
    ),
    # Those who count reasoning beside the completion.
    (
        chat(
            prompt_tokens=10,
            completion_tokens=5,
            total_tokens=40,
            completion_tokens_details={"reasoning_tokens": 25},
        ),
        Usage("gpt-5-mini", 10, 30, 0, 0, 25),
    ),
    (chat(prompt_tokens=100, completion_tokens=5, prompt_cache_hit_tokens=64), Usage("gpt-5-mini", 100, 5, 64)),
    # Anthropic: the cache stands beside the input.
    (
        {
            "type": "message",
            "model": "claude-sonnet-4-5",
            "usage": {
                "input_tokens": 10,
                "cache_read_input_tokens": 900,
                "cache_creation_input_tokens": 90,
                "output_tokens": 50,
                "output_tokens_details": {"thinking_tokens": 20},
            },
        },
        Usage("claude-sonnet-4-5", 1000, 50, 900, 90, 20, "anthropic"),
    ),
    # Bedrock.
    (
        {
            "output": {},
            "usage": {
                "inputTokens": 10,
                "outputTokens": 5,
                "totalTokens": 45,
                "cacheReadInputTokens": 20,
                "cacheWriteInputTokens": 10,
            },
        },
        Usage("", 40, 5, 20, 10, 0, "aws"),
    ),
    # litellm, with Anthropic behind it: all of it is in the prompt.
    (
        chat(
            prompt_tokens=1000,
            completion_tokens=5,
            total_tokens=1005,
            prompt_tokens_details={"cached_tokens": 900},
            cache_read_input_tokens=900,
            cache_creation_input_tokens=90,
        ),
        Usage("gpt-5-mini", 1000, 5, 900, 90),
    ),
    # cohere: what is billed.
    (
        {
            "message": {},
            "usage": {"billed_units": {"input_tokens": 9, "output_tokens": 3}, "tokens": {"input_tokens": 70}},
        },
        Usage("", 9, 3, provider="cohere"),
    ),
    ({"embeddings": [], "meta": {"billed_units": {"input_tokens": 4}}}, Usage("", 4, provider="cohere")),
    # An interaction of Gemini.
    (
        {
            "model": "gemini-3",
            "usage": {
                "total_input_tokens": 7,
                "total_output_tokens": 5,
                "total_thought_tokens": 3,
                "total_cached_tokens": 2,
            },
        },
        Usage("gemini-3", 7, 8, 2, 0, 3, "google"),
    ),
    # What says nothing, or nonsense.
    ({"id": "x"}, None),
    ({"usage": {}}, None),
    ({"usage": "many"}, None),
    ([], None),
    ("text", None),
    (None, None),
    (chat(prompt_tokens=-5, completion_tokens=True, total_tokens="9"), Usage("gpt-5-mini")),
    (
        chat(prompt_tokens=5, completion_tokens=1, prompt_tokens_details={"cached_tokens": 50}),
        Usage("gpt-5-mini", 5, 1, 5),
    ),
]


@pytest.mark.parametrize(("answer", "used"), ROWS)
def test_tokens_in_are_all_that_was_read_and_tokens_out_all_that_was_written(answer, used):
    assert usage(answer) == used


GEMINI = {
    "modelVersion": "models/gemini-2.5-flash",
    "usageMetadata": {
        "promptTokenCount": 100,
        "toolUsePromptTokenCount": 20,
        "candidatesTokenCount": 30,
        "thoughtsTokenCount": 50,
        "cachedContentTokenCount": 60,
        "totalTokenCount": 200,
    },
}


def test_gemini_counts_thoughts_beside_the_candidates_in_both_of_its_spellings():
    from google.genai.types import GenerateContentResponse

    used = Usage("gemini-2.5-flash", 120, 80, 60, 0, 50, "google")
    assert usage(GEMINI) == used
    assert usage(GenerateContentResponse.model_validate(GEMINI).model_dump(mode="json")) == used


def test_answers_of_the_packages_themselves_are_understood():
    from anthropic.types import Message
    from cohere import V2ChatResponse
    from mistralai.client.models import ChatCompletionResponse
    from openai.types.chat import ChatCompletion

    openai_answer = {**chat(prompt_tokens=5, completion_tokens=2, total_tokens=7), "created": 1}
    assert usage(ChatCompletion.model_validate(openai_answer).model_dump(mode="json")) == Usage("gpt-5-mini", 5, 2)
    mistral_answer = {**openai_answer, "model": "mistral-large"}
    assert usage(ChatCompletionResponse.model_validate(mistral_answer).model_dump(mode="json")) == Usage(
        "mistral-large", 5, 2
    )
    message = {
        "id": "m",
        "type": "message",
        "role": "assistant",
        "model": "claude",
        "content": [],
        "usage": {"input_tokens": 1, "output_tokens": 2},
    }
    assert usage(Message.model_validate(message).model_dump(mode="json")) == Usage("claude", 1, 2, provider="anthropic")
    cohere_answer = {
        "id": "c",
        "finish_reason": "COMPLETE",
        "message": {"role": "assistant"},
        "usage": {"billed_units": {"input_tokens": 9.0, "output_tokens": 3.0}, "cached_tokens": 4},
    }
    found = usage(V2ChatResponse.model_validate(cohere_answer).model_dump(mode="json"))
    assert found == Usage("", 9, 3, 4, provider="cohere")


def test_facts_are_what_the_ledger_takes_without_zeros():
    facts = Usage("m", 5, 2, 3, 0, 1).facts
    assert facts == {"model": "m", "tokens_in": 5, "tokens_out": 2, "tokens_cached": 3, "tokens_reasoning": 1}
    assert CallFacts.read(facts, where="here")[:3] == ("m", 5, 2)
    assert Usage("").facts == {}
