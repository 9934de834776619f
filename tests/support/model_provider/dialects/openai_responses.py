"""OpenAI's responses: one object, or the long sequence of events that builds it."""

from __future__ import annotations

from typing import Any

from tests.support.model_provider.asked import Answer, Asked
from tests.support.model_provider.dialects.contract import event
from tests.support.model_provider.faults import Fault

_REASONS = {"length": "max_output_tokens", "filter": "content_filter"}
_ITEM = "msg_1"


def whole(asked: Asked, answer: Answer) -> dict[str, Any]:
    reason = _REASONS.get(answer.finish)
    return _response(
        asked,
        status="incomplete" if reason else "completed",
        incomplete_details={"reason": reason} if reason else None,
        output=[_message(answer, "incomplete" if reason else "completed")],
        usage={
            "input_tokens": answer.tokens_in,
            "input_tokens_details": {"cached_tokens": answer.cached},
            "output_tokens": answer.tokens_out,
            "output_tokens_details": {"reasoning_tokens": answer.reasoning},
            "total_tokens": answer.tokens_in + answer.tokens_out,
        },
    )


def events(asked: Asked, answer: Answer) -> list[bytes]:
    begun = {**_message(answer, "in_progress"), "content": []}
    place = {"item_id": _ITEM, "output_index": 0, "content_index": 0}
    done = whole(asked, answer)
    sequence: list[dict[str, Any]] = [
        {"type": "response.created", "response": _response(asked)},
        {"type": "response.in_progress", "response": _response(asked)},
        {"type": "response.output_item.added", "output_index": 0, "item": begun},
        {"type": "response.content_part.added", **place, "part": _part("")},
        *({"type": "response.output_text.delta", **place, "delta": piece, "logprobs": []} for piece in answer.pieces()),
        {"type": "response.output_text.done", **place, "text": answer.text, "logprobs": []},
        {"type": "response.content_part.done", **place, "part": _part(answer.text)},
        {"type": "response.output_item.done", "output_index": 0, "item": done["output"][0]},
        {"type": f"response.{done['status']}", "response": done},
    ]
    return [_numbered(number, one) for number, one in enumerate(sequence)]


def error_event(asked: Asked, fault: Fault) -> bytes:
    """Either an `error` event, or (`as=failed`) a response that has failed."""
    message = "The server had an error while processing your request. Sorry about that!"
    if fault.options.get("as") == "failed":
        error = {"code": "server_error", "message": message}
        return _numbered(99, {"type": "response.failed", "response": _response(asked, status="failed", error=error)})
    return _numbered(99, {"type": "error", "code": "server_error", "message": message, "param": None})


def _numbered(number: int, data: dict[str, Any]) -> bytes:
    return event({**data, "sequence_number": number}, data["type"])


def _part(text: str) -> dict[str, Any]:
    return {"type": "output_text", "annotations": [], "logprobs": [], "text": text}


def _message(answer: Answer, status: str) -> dict[str, Any]:
    return {"id": _ITEM, "type": "message", "status": status, "role": "assistant", "content": [_part(answer.text)]}


def _response(asked: Asked, **said: Any) -> dict[str, Any]:
    return {
        "id": "resp_1",
        "object": "response",
        "created_at": 1_790_000_000,
        "status": "in_progress",
        "error": None,
        "incomplete_details": None,
        "instructions": None,
        "max_output_tokens": None,
        "model": asked.plain_model,
        "output": [],
        "parallel_tool_calls": True,
        "previous_response_id": None,
        "reasoning": {"effort": "medium", "summary": None},
        "store": True,
        "temperature": 1.0,
        "text": {"format": {"type": "text"}},
        "tool_choice": "auto",
        "tools": [],
        "top_p": 1.0,
        "truncation": "disabled",
        "usage": None,
        "user": None,
        "metadata": {},
        **said,
    }
