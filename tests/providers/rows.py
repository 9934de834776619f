"""What providers answer, and what that means: every row of the table that `verdict` promises, by dialect."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from holdfast import (
    BadRequest,
    ContentFiltered,
    CredentialRefused,
    InDoubt,
    InputTooLong,
    OutOfCredit,
    Overloaded,
    RateLimited,
)
from tests.support.model_provider.asked import Asked
from tests.support.model_provider.faults import parse
from tests.support.model_provider.serving import DIALECTS

ALL = tuple(DIALECTS)


@dataclass(frozen=True, slots=True)
class Row:
    """One answer of a provider."""

    fault: str
    means: type[BaseException]
    dialects: tuple[str, ...] = ALL
    #: Seconds that are asked for, at least and at most; None if none are.
    pause: tuple[float, float] | None = None
    #: Only streams can end so.
    streams: bool = False

    def words(self, dialect: str, model: str) -> str:
        """What the provider says; empty if it says nothing, or only a gateway does."""
        refusal = DIALECTS[dialect].refusal(Asked("", model, ""), parse(self.fault))
        return "" if refusal is None else _message(refusal.body)


def _message(body: Any) -> str:
    if "error" in body:
        return str(body["error"]["message"])
    return str(body.get("message") or (body["detail"] if isinstance(body["detail"], str) else body["detail"][0]["msg"]))


def _exactly(seconds: float) -> tuple[float, float]:
    return seconds, seconds


ROWS = [
    Row("429", RateLimited),
    Row("429 retry-after=2", RateLimited, pause=_exactly(2)),
    Row("429 retry-after=0.25", RateLimited, pause=_exactly(0.25)),
    Row("429 retry-after-ms=1500", RateLimited, pause=_exactly(1.5)),
    Row("429 retry-after-ms=1500 retry-after=2", RateLimited, pause=_exactly(1.5)),
    # The date is that of the server plus two minutes; a slow machine may take one of them.
    Row("429 retry-after-date=120", RateLimited, pause=(60, 120)),
    Row("429 retry-after=10800", RateLimited, pause=_exactly(10800)),
    Row("429 retry-info=31.5", RateLimited, ("gemini",), pause=_exactly(31.5)),
    Row("429 reset=120", RateLimited, ("anthropic",), pause=(60, 120)),
    Row("429 reset=120", RateLimited, ("openai",), pause=_exactly(120)),
    # Fifty requests are free again after two minutes, and the first of them after a fiftieth of that.
    Row("429 reset=120 of=requests", RateLimited, ("anthropic",), pause=(1.2, 2.4)),
    Row("capacity", RateLimited, ("gemini", "mistral")),
    Row("insufficient_quota", OutOfCredit, ("openai",)),
    Row("insufficient_quota retry-after=2", OutOfCredit, ("openai",)),
    Row("billing_hard_limit_reached", OutOfCredit, ("openai",)),
    Row("credit_balance_exhausted", OutOfCredit, ("openai",)),
    Row("project_spend_limit_exceeded", OutOfCredit, ("openai",)),
    Row("billing_error", OutOfCredit, ("anthropic",)),
    Row("credit_balance", OutOfCredit, ("anthropic",)),
    Row("usage_limits", OutOfCredit, ("anthropic",)),
    Row("monthly_spend", OutOfCredit, ("anthropic",)),
    Row("enforced_spend_limit_reached", OutOfCredit, ("anthropic",)),
    Row("prepaid_depleted", OutOfCredit, ("gemini",)),
    Row("spending_cap", OutOfCredit, ("gemini",)),
    Row("402", OutOfCredit),
    Row("401", CredentialRefused),
    Row("403", CredentialRefused),
    Row("api_key_invalid", CredentialRefused, ("gemini",)),
    Row("too_long", InputTooLong),
    Row("413", InputTooLong),
    Row("content_filter", ContentFiltered, ("openai", "anthropic")),
    Row("400", BadRequest),
    Row("404", BadRequest),
    Row("422", BadRequest, ("mistral",)),
    Row("500", Overloaded),
    Row("503", Overloaded),
    Row("503 retry-after=7", Overloaded, pause=_exactly(7)),
    Row("529", Overloaded, ("anthropic",)),
    Row("502", InDoubt),
    Row("502 charged=no", InDoubt),
    Row("504", InDoubt),
    Row("524", InDoubt),
    Row("lost", InDoubt),
    Row("late", InDoubt),
    Row("cut", InDoubt),
    Row("ends-early", InDoubt, streams=True),
    Row("error-in-stream", InDoubt, streams=True),
    Row("error-in-stream as=failed", InDoubt, ("openai",), streams=True),
]

_BOTH, _STREAMS = ("sync", "async"), ("stream", "async stream")
_BODY = "litellm keeps the body only as text, or as the text of bytes, inside its message"
_WRAPPED = "litellm raises APIConnectionError for statuses that it does not know; the error that it wraps has them"
_BEFORE = "litellm raises MidStreamFallbackError before the first chunk as well; the error that it wraps tells"
_ENDED = (
    "litellm makes up the finish reason of a stream that broke off; its attribute received_finish_reason stays None"
)
#: Rows that are not read as they should be: way, modes, faults, and why.
NOT_YET: list[tuple[str, tuple[str, ...], tuple[str, ...], str]] = [
    ("anthropic", (*_BOTH, *_STREAMS), ("usage_limits",), "the words are not in the table"),
    ("litellm anthropic", (*_BOTH, *_STREAMS), ("usage_limits",), "the words are not in the table"),
    ("litellm openai", ("async",), ("cut",), "litellm makes a 500 of half a reply: charged, and called free"),
    ("litellm anthropic", (*_BOTH, *_STREAMS), ("billing_error", "402", "403"), _WRAPPED),
    ("litellm anthropic", (*_BOTH, *_STREAMS), ("413",), _BODY),
    ("litellm anthropic", _STREAMS, ("429", "monthly_spend"), _BODY),
    ("litellm gemini", _BOTH, ("429 retry-info=31.5",), _BODY),
    ("litellm gemini", _STREAMS, ("400",), _BODY),
    ("litellm gemini", (*_BOTH, *_STREAMS), ("402", "413"), _WRAPPED),
    ("litellm gemini", _STREAMS, ("429", "capacity", "prepaid_depleted", "spending_cap", "500", "503"), _BEFORE),
    ("litellm openai", _STREAMS, ("ends-early",), _ENDED),
    ("litellm anthropic", _STREAMS, ("ends-early",), _ENDED),
    ("litellm gemini", _STREAMS, ("ends-early", "error-in-stream"), _ENDED),
    ("litellm mistral", _STREAMS, ("ends-early", "error-in-stream"), _ENDED),
    *((f"litellm {dialect}", ("async stream",), ("cut",), _ENDED) for dialect in ALL),
]


def not_yet(row: Row, way: str, mode: str) -> str:
    """Why this row is known to fail; empty if it must pass."""
    name = row.fault.split()[0]
    found = (
        why for ways, modes, faults, why in NOT_YET if way == ways and mode in modes and {name, row.fault} & {*faults}
    )
    return next(found, "")
