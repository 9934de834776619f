"""Mistral: chat completions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tests.support.model_provider.asked import Answer, Asked
from tests.support.model_provider.dialects.contract import event, text_of
from tests.support.model_provider.faults import Fault, Refusal, left_of, pause_headers

#: status, type, code, message
REFUSALS: dict[str, tuple[int, str, str, str]] = {
    "429": (429, "rate_limited", "1300", "Rate limit exceeded"),
    "capacity": (429, "service_tier_capacity_exceeded", "3505", "Service tier capacity exceeded for this model."),
    "402": (402, "payment_required", "1200", "Your account has no credit left. Please check your billing."),
    "403": (403, "forbidden", "1400", "You are not allowed to use this API key here."),
    "too_long": (
        400,
        "invalid_request_prompt",
        "3051",
        "Prompt contains 65673 tokens, too large for model with 32768 maximum context length",
    ),
    "413": (413, "request_too_large", "1600", "Request entity too large"),
    "400": (400, "invalid_request_message_order", "3230", "Expected last role User or Tool but got assistant"),
    "404": (400, "invalid_model", "1500", "Invalid model: {model}"),
    "500": (500, "internal_server_error", "3700", "Service unavailable."),
    "503": (503, "unavailable", "3800", "Service unavailable."),
}
#: The gateway in front of it has words of its own.
_GATEWAY: dict[str, tuple[int, Any]] = {
    "401": (401, {"detail": "Unauthorized"}),
    "422": (422, {"detail": [{"type": "missing", "loc": ["body", "messages"], "msg": "Field required"}]}),
}
_FINISH = {"stop": "stop", "length": "length"}


class Mistral:
    name = "mistral"
    finishes: tuple[str, ...] = ("length",)

    def read(self, path: str, body: dict[str, Any]) -> Asked | None:
        if path != "/v1/chat/completions":
            return None
        return Asked("chat", str(body.get("model")), text_of(body.get("messages")), bool(body.get("stream")), body)

    def reply(self, asked: Asked, answer: Answer) -> dict[str, Any]:
        message = {"role": "assistant", "content": answer.text, "tool_calls": None, "prefix": False}
        choice = {"index": 0, "message": message, "finish_reason": _FINISH[answer.finish]}
        return {**_head(asked, "chat.completion"), "choices": [choice], "usage": usage(answer)}

    def events(self, asked: Asked, answer: Answer) -> list[bytes]:
        chunks = [_chunk(asked, {"role": "assistant", "content": ""})]
        chunks += [_chunk(asked, {"content": piece}) for piece in answer.pieces()]
        chunks.append({**_chunk(asked, {"content": ""}, _FINISH[answer.finish]), "usage": usage(answer)})
        return [*(event(chunk) for chunk in chunks), event("[DONE]")]

    def error_event(self, asked: Asked, fault: Fault) -> bytes:
        return event(_body("internal_server_error", "3700", "Service unavailable."))

    def refusal(self, asked: Asked, fault: Fault) -> Refusal | None:
        headers = {"x-request-id": "refused", **pause_headers(fault)}
        if fault.name in _GATEWAY:
            return Refusal(*_GATEWAY[fault.name], headers)
        if (found := REFUSALS.get(fault.name)) is None:
            return None
        status, kind, code, message = found
        return Refusal(status, _body(kind, code, message.format(model=asked.model)), headers)

    def headers(self, fault: Fault | None) -> Mapping[str, str]:
        """What is left of this minute; not when it ends."""
        requests, tokens = left_of("requests", 60, fault), left_of("tokens", 50_000, fault)
        return {
            "x-request-id": "0123456789",
            "x-ratelimit-limit-req-minute": str(requests.limit),
            "x-ratelimit-remaining-req-minute": str(requests.left),
            "x-ratelimit-limit-tokens-minute": str(tokens.limit),
            "x-ratelimit-remaining-tokens-minute": str(tokens.left),
        }


def usage(answer: Answer) -> dict[str, Any]:
    return {
        "prompt_tokens": answer.tokens_in,
        "completion_tokens": answer.tokens_out,
        "total_tokens": answer.tokens_in + answer.tokens_out,
        "prompt_tokens_details": {"cached_tokens": answer.cached},
    }


def _body(kind: str, code: str, message: str) -> dict[str, Any]:
    return {"object": "error", "message": message, "type": kind, "param": None, "code": code}


def _head(asked: Asked, kind: str) -> dict[str, Any]:
    return {"id": "cmpl-1", "object": kind, "created": 1_790_000_000, "model": asked.plain_model}


def _chunk(asked: Asked, delta: dict[str, Any], finish: str | None = None) -> dict[str, Any]:
    return {
        **_head(asked, "chat.completion.chunk"),
        "choices": [{"index": 0, "delta": delta, "finish_reason": finish}],
    }
