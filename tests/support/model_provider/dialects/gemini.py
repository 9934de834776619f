"""Google's Gemini, as the developer API speaks: generateContent, streamGenerateContent, embeddings."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from tests.support.model_provider.asked import Answer, Asked, vector_of
from tests.support.model_provider.dialects.contract import event, text_of
from tests.support.model_provider.faults import Fault, Refusal, pause_headers

_PATH = re.compile(r"/v1(?:beta)?/models/(?P<model>.+):(?P<verb>\w+)")
_ROUTES = {
    "generateContent": "generate",
    "streamGenerateContent": "generate",
    "embedContent": "embed",
    "batchEmbedContents": "embed",
}
_INVALID, _EXHAUSTED = "INVALID_ARGUMENT", "RESOURCE_EXHAUSTED"
_TYPE = "type.googleapis.com/google.rpc."
_KEY = {"@type": f"{_TYPE}ErrorInfo", "reason": "API_KEY_INVALID", "domain": "googleapis.com"}
_QUOTA = {
    "@type": f"{_TYPE}QuotaFailure",
    "violations": [{"quotaId": "GenerateRequestsPerMinutePerProjectPerModel", "quotaValue": "10"}],
}
#: code, status, message, details
REFUSALS: dict[str, tuple[int, str, str, list[dict[str, Any]]]] = {
    # The words are those of OpenAI for an empty account, and mean a limit per minute.
    "429": (
        429,
        _EXHAUSTED,
        "You exceeded your current quota, please check your plan and billing details. * Quota exceeded for metric: requests",
        [_QUOTA],
    ),
    "capacity": (429, _EXHAUSTED, "Resource has been exhausted (e.g. check quota).", []),
    "prepaid_depleted": (429, _EXHAUSTED, "Your prepayment credits are depleted. Please manage your billing.", []),
    "spending_cap": (429, _EXHAUSTED, "Your project has exceeded its monthly spending cap.", []),
    "402": (402, "FAILED_PRECONDITION", "Payment is required for this project.", []),
    "401": (401, "UNAUTHENTICATED", "Request had invalid authentication credentials.", []),
    "403": (403, "PERMISSION_DENIED", "Your API key was reported as leaked. Please use another API key.", []),
    "api_key_invalid": (400, _INVALID, "API key not valid. Please pass a valid API key.", [_KEY]),
    "too_long": (
        400,
        _INVALID,
        "The input token count (1048577) exceeds the maximum number of tokens allowed (1048576).",
        [],
    ),
    "413": (413, _INVALID, "Request payload size exceeds the limit: 20971520 bytes.", []),
    "400": (400, _INVALID, "Invalid JSON payload received. Unknown name 'contens': Cannot find field.", []),
    "404": (404, "NOT_FOUND", "models/{model} is not found for API version v1beta.", []),
    "500": (500, "INTERNAL", "An internal error has occurred. Please retry.", []),
    "503": (503, "UNAVAILABLE", "The model is overloaded. Please try again later.", []),
}
_FINISH = {"stop": "STOP", "length": "MAX_TOKENS", "filter": "SAFETY"}
_RATINGS = [{"category": "HARM_CATEGORY_HARASSMENT", "probability": "HIGH", "blocked": True}]


class Gemini:
    name = "gemini"
    finishes: tuple[str, ...] = ("length", "filter", "blocked")

    def read(self, path: str, body: dict[str, Any]) -> Asked | None:
        found = _PATH.fullmatch(path)
        if found is None or (route := _ROUTES.get(found["verb"])) is None:
            return None
        given = body.get("requests", body.get("content")) if route == "embed" else body.get("contents")
        parts = [text_of(body.get("systemInstruction")), text_of(given)]
        prompt = "\n".join(filter(None, parts))
        return Asked(route, found["model"], prompt, found["verb"].startswith("stream"), body)

    def reply(self, asked: Asked, answer: Answer) -> dict[str, Any]:
        if asked.route == "embed":
            requests = asked.option("requests")
            if requests is None:
                return {"embedding": {"values": vector_of(asked.prompt)}}
            return {"embeddings": [{"values": vector_of(text_of(one))} for one in requests]}
        if answer.finish == "blocked":
            feedback = {"blockReason": "PROHIBITED_CONTENT", "safetyRatings": _RATINGS}
            return {"promptFeedback": feedback, **_tail(asked, answer)}
        return {"candidates": [_candidate(answer, answer.text, last=True)], **_tail(asked, answer)}

    def events(self, asked: Asked, answer: Answer) -> list[bytes]:
        if answer.finish == "blocked":
            return [event(self.reply(asked, answer))]
        *pieces, last = answer.pieces()
        chunks = [{"candidates": [_candidate(answer, piece)], **_tail(asked, answer, so_far=1)} for piece in pieces]
        chunks.append({"candidates": [_candidate(answer, last, last=True)], **_tail(asked, answer)})
        return [event(chunk) for chunk in chunks]

    def error_event(self, asked: Asked, fault: Fault) -> bytes:
        code, status, message, _ = REFUSALS["503"]
        return event({"error": {"code": code, "message": message, "status": status}})

    def refusal(self, asked: Asked, fault: Fault) -> Refusal | None:
        if (found := REFUSALS.get(fault.name)) is None:
            return None
        code, status, message, details = found
        if "retry-info" in fault.options:
            details = [*details, {"@type": f"{_TYPE}RetryInfo", "retryDelay": f"{fault.options['retry-info']}s"}]
        error: dict[str, Any] = {"code": code, "message": message.format(model=asked.model), "status": status}
        if details:
            error["details"] = details
        return Refusal(code, {"error": error}, {"server-timing": "gfet4t7; dur=12", **pause_headers(fault)})

    def headers(self, fault: Fault | None) -> Mapping[str, str]:
        """Gemini says nothing about what is left."""
        return {"server-timing": "gfet4t7; dur=312", "x-content-type-options": "nosniff"}


def _candidate(answer: Answer, text: str, *, last: bool = False) -> dict[str, Any]:
    candidate: dict[str, Any] = {"content": {"parts": [{"text": text}], "role": "model"}, "index": 0}
    if last:
        candidate["finishReason"] = _FINISH[answer.finish]
    if last and answer.finish == "filter":
        candidate["safetyRatings"] = _RATINGS
    return candidate


def _tail(asked: Asked, answer: Answer, so_far: int | None = None) -> dict[str, Any]:
    """Thoughts are counted beside the candidates, not inside them."""
    written = answer.tokens_out - answer.reasoning if so_far is None else so_far
    counted = {
        "promptTokenCount": answer.tokens_in,
        "cachedContentTokenCount": answer.cached,
        "candidatesTokenCount": written,
        "thoughtsTokenCount": answer.reasoning,
        "totalTokenCount": answer.tokens_in + written + answer.reasoning,
        "promptTokensDetails": [{"modality": "TEXT", "tokenCount": answer.tokens_in}],
    }
    return {"usageMetadata": counted, "modelVersion": asked.plain_model, "responseId": "resp-1"}
