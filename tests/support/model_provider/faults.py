"""What the server is asked to do wrong: by a marker in the prompt or the model's name, or by its control address.

[[fault:429 retry-after=2]]              refuse, and ask for a pause: also by retry-after-ms=, retry-after-date= (in seconds),
                                         retry-info= (in Google's details), reset= (what is left, as for remaining-0)
[[fault:insufficient_quota]]             any name in the dialect's REFUSALS; never charged
[[fault:502]]                            a gateway's page after the provider has done its work: charged, unless charged=no
[[fault:lost]]                           charged, and the connection is closed without a reply
[[fault:late]]                           charged, and the reply never comes while the caller waits
[[fault:cut]]                            charged, and the connection breaks in the middle of the reply or stream
[[fault:ends-early]]                     charged, and the stream ends in the middle as if nothing were wrong
[[fault:error-in-stream]]                charged by half: an error inside of a stream, in the words of the dialect
[[fault:length]] [[fault:filter]]        charged: a good reply with that finish reason
[[fault:blocked]]                        charged for the prompt: Gemini's block reason, without an answer
[[fault:remaining-0 reset=30]]           charged: a good reply; its headers say that no tokens are left for 30 seconds,
                                         or with of=requests, that no request is
[[fault:429 first=2]]                    the first two requests with this prompt; then it is answered
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from typing import Any

_FAULT = re.compile(r"\[\[fault:(?P<what>[^\]]+)\]\]")
#: Pages of a gateway in front of the provider, which may have done its work.
GATEWAY = {"502": "Bad Gateway", "504": "Gateway Time-out", "524": "A timeout occurred"}
#: Replies that are charged and have something special.
FINISHES = ("length", "filter", "blocked")
BREAKS = ("lost", "late", "cut", "ends-early", "error-in-stream")


@dataclass(frozen=True, slots=True)
class Fault:
    name: str
    options: dict[str, str] = field(default_factory=dict)

    def number(self, option: str, default: float = 0) -> float:
        return float(self.options.get(option, default))


@dataclass(frozen=True, slots=True)
class Refusal:
    """An error in the words of a dialect. A text is a page, anything else is JSON."""

    status: int
    body: Any
    headers: dict[str, str] = field(default_factory=dict)


def parse(what: str) -> Fault:
    """`429 retry-after=2`"""
    name, *options = what.split()
    return Fault(name, dict(option.split("=", 1) for option in options))


def asked_for(text: str) -> Fault | None:
    found = _FAULT.search(text)
    return parse(found["what"]) if found else None


def page(status: str) -> str:
    words = f"{status} {GATEWAY[status]}"
    return f"<html>\r\n<head><title>{words}</title></head>\r\n<body><center><h1>{words}</h1></center></body>\r\n</html>"


@dataclass(frozen=True, slots=True)
class Left:
    """What the headers of a reply say about one limit."""

    limit: int
    left: int
    reset_seconds: float


def left_of(of: str, limit: int, fault: Fault | None) -> Left:
    """Plenty, unless the fault names this limit."""
    if fault is not None and fault.options.get("of", "tokens") == of:
        return Left(limit, 0, fault.number("reset", 1))
    return Left(limit, limit - 9, 0.12)


def pause_headers(fault: Fault) -> dict[str, str]:
    """The pause as a header, in the way that was asked for."""
    headers: dict[str, str] = {
        name: fault.options[name] for name in ("retry-after", "retry-after-ms") if name in fault.options
    }
    if "retry-after-date" in fault.options:
        headers["retry-after"] = format_datetime(later(fault.number("retry-after-date")), usegmt=True)
    return headers


def later(seconds: float) -> datetime:
    return datetime.now(UTC) + timedelta(seconds=seconds)


def rfc3339(moment: datetime) -> str:
    return moment.strftime("%Y-%m-%dT%H:%M:%SZ")
