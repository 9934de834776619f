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
