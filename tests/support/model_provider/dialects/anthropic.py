"""Anthropic: messages."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tests.support.model_provider.asked import Answer, Asked
from tests.support.model_provider.dialects.contract import event, text_of
from tests.support.model_provider.faults import Fault, Refusal, later, left_of, pause_headers, rfc3339

_INVALID, _LIMITED = "invalid_request_error", "rate_limit_error"
#: status, type, message
REFUSALS: dict[str, tuple[int, str, str]] = {
    "429": (429, _LIMITED, "This request would exceed your organization's rate limit of 50 requests per minute."),
    "billing_error": (402, "billing_error", "There is an issue with your billing or payment information."),
    "402": (402, "billing_error", "Your payment method was declined."),
    "credit_balance": (400, _INVALID, "Your credit balance is too low to access the Anthropic API."),
    "usage_limits": (
        400,
        _INVALID,
        "You have reached your specified API usage limits. You will regain access on 2099-01-01 at 00:00 UTC.",
    ),
    "monthly_spend": (429, _LIMITED, "This request would exceed your account's monthly spend limit."),
    "enforced_spend_limit_reached": (429, _LIMITED, "Your organization has reached the usage threshold of its tier."),
    "401": (401, "authentication_error", "invalid x-api-key"),
    "403": (403, "permission_error", "Your API key does not have permission to use the specified resource."),
    "too_long": (400, _INVALID, "prompt is too long: 210000 tokens > 200000 maximum"),
    "413": (413, "request_too_large", "Request exceeds the maximum allowed number of bytes."),
    "content_filter": (400, _INVALID, "Output blocked by content filtering policy"),
    "400": (400, _INVALID, "messages.0.content: Input should be a valid string"),
    "404": (404, "not_found_error", "model: {model}"),
    "500": (500, "api_error", "Internal server error"),
    "503": (503, "api_error", "Service temporarily unavailable"),
    "529": (529, "overloaded_error", "Overloaded"),
}
_STOP = {"stop": "end_turn", "length": "max_tokens", "filter": "refusal"}


class Anthropic:
    name = "anthropic"
    finishes: tuple[str, ...] = ("length", "filter")

    def read(self, path: str, body: dict[str, Any]) -> Asked | None:
        if path != "/v1/messages":
            return None
        prompt = "\n".join(filter(None, [text_of(body.get("system")), text_of(body.get("messages"))]))
        return Asked("messages", str(body.get("model")), prompt, bool(body.get("stream")), body)

    def reply(self, asked: Asked, answer: Answer) -> dict[str, Any]:
        return {
            **_head(asked),
            "content": [{"type": "text", "text": answer.text}],
            "stop_reason": _STOP[answer.finish],
            "stop_sequence": None,
            "usage": usage(answer),
        }

    def events(self, asked: Asked, answer: Answer) -> list[bytes]:
        first = {**usage(answer), "output_tokens": 1}
        begun = {**_head(asked), "content": [], "stop_reason": None, "stop_sequence": None, "usage": first}
        ended = {"stop_reason": _STOP[answer.finish], "stop_sequence": None}
        sequence: list[dict[str, Any]] = [
            {"type": "message_start", "message": begun},
            {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}},
            {"type": "ping"},
            *(
                {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": piece}}
                for piece in answer.pieces()
            ),
            {"type": "content_block_stop", "index": 0},
            {"type": "message_delta", "delta": ended, "usage": {"output_tokens": answer.tokens_out}},
            {"type": "message_stop"},
        ]
        return [event(one, one["type"]) for one in sequence]

    def error_event(self, asked: Asked, fault: Fault) -> bytes:
        kind, message = fault.options.get("type", "overloaded_error"), "Overloaded"
        return event({"type": "error", "error": {"type": kind, "message": message}}, "error")

    def refusal(self, asked: Asked, fault: Fault) -> Refusal | None:
        if (found := REFUSALS.get(fault.name)) is None:
            return None
        status, kind, message = found
        error: dict[str, Any] = {"type": kind, "message": message.format(model=asked.model)}
        if fault.name == "enforced_spend_limit_reached":
            error["details"] = {"error_code": fault.name}
        headers = pause_headers(fault)
        if "reset" in fault.options:
            headers |= self.headers(fault)
        body = {"type": "error", "error": error, "request_id": "req_refused"}
        return Refusal(status, body, {"request-id": "req_refused", **headers})

    def headers(self, fault: Fault | None) -> Mapping[str, str]:
        headers = {"request-id": "req_0123456789", "anthropic-organization-id": "00000000-0000"}
        limits = {"requests": 50, "tokens": 90000, "input-tokens": 80000, "output-tokens": 10000}
        for of, limit in limits.items():
            left = left_of(of, limit, fault)
            headers |= {
                f"anthropic-ratelimit-{of}-limit": str(left.limit),
                f"anthropic-ratelimit-{of}-remaining": str(left.left),
                f"anthropic-ratelimit-{of}-reset": rfc3339(later(left.reset_seconds)),
            }
        return headers


def usage(answer: Answer) -> dict[str, Any]:
    """What was written to a cache and read from it is counted beside the input, not inside it."""
    return {
        "input_tokens": answer.tokens_in - answer.cached - answer.written,
        "cache_creation_input_tokens": answer.written,
        "cache_read_input_tokens": answer.cached,
        "cache_creation": {"ephemeral_5m_input_tokens": answer.written, "ephemeral_1h_input_tokens": 0},
        "output_tokens": answer.tokens_out,
        "service_tier": "standard",
    }


def _head(asked: Asked) -> dict[str, Any]:
    return {"id": "msg_1", "type": "message", "role": "assistant", "model": asked.plain_model}
