"""OpenAI: chat completions, responses, embeddings, speech."""

from __future__ import annotations

import base64
import struct
from collections.abc import Mapping
from typing import Any

from tests.support.model_provider.asked import Answer, Asked, speech_of, vector_of
from tests.support.model_provider.dialects import openai_responses as responses
from tests.support.model_provider.dialects.contract import event, text_of
from tests.support.model_provider.faults import Fault, Refusal, left_of, pause_headers

_INVALID = "invalid_request_error"
#: status, type, code, message
REFUSALS: dict[str, tuple[int, str, str | None, str]] = {
    "429": (
        429,
        "requests",
        "rate_limit_exceeded",
        "Rate limit reached for {model} on requests per min (RPM): Limit 3, Used 3, Requested 1.",
    ),
    "insufficient_quota": (
        429,
        "insufficient_quota",
        "insufficient_quota",
        "You exceeded your current quota, please check your plan and billing details.",
    ),
    "billing_hard_limit_reached": (
        400,
        "billing_limit_user_error",
        "billing_hard_limit_reached",
        "Billing hard limit has been reached.",
    ),
    "credit_balance_exhausted": (
        429,
        "insufficient_quota",
        "credit_balance_exhausted",
        "The prepaid credit of this organization is used up.",
    ),
    "project_spend_limit_exceeded": (
        429,
        "insufficient_quota",
        "project_spend_limit_exceeded",
        "This project has reached its spend limit for the month.",
    ),
    "402": (402, "payment_required", None, "Insufficient credits. Add more to go on."),
    "401": (401, _INVALID, "invalid_api_key", "Incorrect API key provided: sk-none."),
    "403": (
        403,
        _INVALID,
        None,
        "You have insufficient permissions for this operation. Missing scopes: model.request.",
    ),
    "too_long": (
        400,
        _INVALID,
        "context_length_exceeded",
        "This model's maximum context length is 128000 tokens. However, your messages resulted in 130012 tokens.",
    ),
    "413": (413, "server_error", None, "Maximum content size limit (26214400) exceeded (26214401 bytes read)"),
    "content_filter": (
        400,
        _INVALID,
        "content_policy_violation",
        "Your request was rejected as a result of our safety system.",
    ),
    "400": (400, _INVALID, None, "Invalid type for 'messages[0].content': expected a string, but got an integer."),
    "404": (404, _INVALID, "model_not_found", "The model `{model}` does not exist or you do not have access to it."),
    "500": (500, "server_error", None, "The server had an error while processing your request. Sorry about that!"),
    "503": (
        503,
        "server_error",
        "server_is_overloaded",
        "Our servers are currently overloaded, please try again later.",
    ),
}
_FINISH = {"stop": "stop", "length": "length", "filter": "content_filter"}


class OpenAI:
    name = "openai"
    finishes: tuple[str, ...] = ("length", "filter")

    def read(self, path: str, body: dict[str, Any]) -> Asked | None:
        routes = {"/v1/chat/completions": "chat", "/v1/responses": "responses", "/v1/embeddings": "embeddings"}
        routes["/v1/audio/speech"] = "speech"
        if (route := routes.get(path)) is None:
            return None
        prompt = text_of(body.get("messages", body.get("input")))
        return Asked(route, str(body.get("model")), prompt, bool(body.get("stream")), body)

    def reply(self, asked: Asked, answer: Answer) -> dict[str, Any] | bytes:
        if asked.route == "speech":
            return speech_of(answer.text)
        if asked.route == "responses":
            return responses.whole(asked, answer)
        if asked.route == "embeddings":
            return _embeddings(asked, answer)
        message: dict[str, Any] = {"role": "assistant", "content": answer.text, "refusal": None, "annotations": []}
        return {
            **_head(asked, "chat.completion"),
            "choices": [
                {"index": 0, "message": message, "logprobs": None, "finish_reason": _FINISH[answer.finish]},
            ],
            "usage": usage(answer),
        }

    def events(self, asked: Asked, answer: Answer) -> list[bytes]:
        if asked.route == "responses":
            return responses.events(asked, answer)
        deltas: list[dict[str, Any]] = [{"role": "assistant", "content": "", "refusal": None}]
        deltas += [{"content": piece} for piece in answer.pieces()]
        chunks = [_chunk(asked, delta) for delta in deltas] + [_chunk(asked, {}, _FINISH[answer.finish])]
        if (asked.option("stream_options") or {}).get("include_usage"):
            chunks = [{**chunk, "usage": None} for chunk in chunks]
            chunks.append({**_head(asked, "chat.completion.chunk"), "choices": [], "usage": usage(answer)})
        return [*(event(chunk) for chunk in chunks), event("[DONE]")]

    def error_event(self, asked: Asked, fault: Fault) -> bytes:
        if asked.route == "responses":
            return responses.error_event(asked, fault)
        message = "The server had an error while processing your request. Sorry about that!"
        return event({"error": {"message": message, "type": "server_error", "param": None, "code": None}})

    def refusal(self, asked: Asked, fault: Fault) -> Refusal | None:
        if (found := REFUSALS.get(fault.name)) is None:
            return None
        status, kind, code, message = found
        error = {"message": message.format(model=asked.model), "type": kind, "param": None, "code": code}
        headers = pause_headers(fault)
        if "reset" in fault.options:
            headers |= self.headers(fault)
        return Refusal(status, {"error": error}, {"x-request-id": "req_refused", **headers})

    def headers(self, fault: Fault | None) -> Mapping[str, str]:
        headers = {"x-request-id": "req_0123456789", "openai-version": "2020-10-01", "openai-processing-ms": "12"}
        for of, limit in {"requests": 500, "tokens": 200_000}.items():
            left = left_of(of, limit, fault)
            headers |= {
                f"x-ratelimit-limit-{of}": str(left.limit),
                f"x-ratelimit-remaining-{of}": str(left.left),
                f"x-ratelimit-reset-{of}": _length(left.reset_seconds),
            }
        return headers


def _length(seconds: float) -> str:
    """`120ms`, `30s`, `6m0s`"""
    if seconds < 1:
        return f"{seconds * 1000:.0f}ms"
    minutes, rest = divmod(seconds, 60)
    return f"{minutes:.0f}m{rest:g}s" if minutes else f"{rest:g}s"


def usage(answer: Answer) -> dict[str, Any]:
    return {
        "prompt_tokens": answer.tokens_in,
        "completion_tokens": answer.tokens_out,
        "total_tokens": answer.tokens_in + answer.tokens_out,
        "prompt_tokens_details": {"cached_tokens": answer.cached, "audio_tokens": 0},
        "completion_tokens_details": {
            "reasoning_tokens": answer.reasoning,
            "audio_tokens": 0,
            "accepted_prediction_tokens": 0,
            "rejected_prediction_tokens": 0,
        },
    }


def _head(asked: Asked, kind: str) -> dict[str, Any]:
    head = {"id": "chatcmpl-1", "object": kind, "created": 1_790_000_000, "model": asked.plain_model}
    return {**head, "service_tier": "default", "system_fingerprint": "fp_1"}


def _chunk(asked: Asked, delta: dict[str, Any], finish: str | None = None) -> dict[str, Any]:
    choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish}
    return {**_head(asked, "chat.completion.chunk"), "choices": [choice]}


def _embeddings(asked: Asked, answer: Answer) -> dict[str, Any]:
    given = asked.option("input")
    data: list[dict[str, Any]] = []
    for index, text in enumerate([given] if isinstance(given, str) else given):
        vector: Any = vector_of(text)
        if asked.option("encoding_format") == "base64":
            vector = base64.b64encode(struct.pack(f"<{len(vector)}f", *vector)).decode()
        data.append({"object": "embedding", "index": index, "embedding": vector})
    counted = {"prompt_tokens": answer.tokens_in, "total_tokens": answer.tokens_in}
    return {"object": "list", "data": data, "model": asked.plain_model, "usage": counted}
