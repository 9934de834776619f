"""How long a provider asks to wait: from the headers and the body of a refusal, and from the headers of a good answer."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any

from holdfast.errors import UsageError
from holdfast.model.durations import LONGEST_SECONDS, seconds
from holdfast.providers.error_reply import Reply, lower

#: A larger number of seconds counts from 1970.
_AN_INSTANT = 1e9
_RETRY_INFO = "google.rpc.RetryInfo"
#: `Please try again in 6m0s`, `Please retry in 36.5s`, `Please retry after 26 seconds`.
_IN_WORDS = re.compile(r"(?:try again|retry) (?:in|after) ((?:\d+(?:\.\d+)?(?:ms|s|m|h|d))+|\d+(?:\.\d+)?(?= seconds))")
#: Limit, remaining and reset, as each kind of API calls them; and what is counted.
_HEADERS = [
    (f"{prefix}-limit{of}", f"{prefix}-remaining{of}", f"{prefix}-reset{of}", of)
    for prefix in ("x-ratelimit", "ratelimit", "x-rate-limit")
    for of in ("", "-requests", "-tokens")
] + [
    (f"{prefix}-limit", f"{prefix}-remaining", f"{prefix}-reset", of)
    for of in ("-requests", "-tokens", "-input-tokens", "-output-tokens")
    for prefix in (f"anthropic-ratelimit{of}",)
]


def asked_pause(reply: Reply, now: datetime | None = None) -> float | None:
    """Seconds that a refusal asks to wait; None if it does not say."""
    headers = reply.headers
    for after in _asked(headers, reply, now):
        if after is not None:
            return after
    return None


def _asked(headers: Mapping[str, str], reply: Reply, now: datetime | None) -> Iterator[float | None]:
    """Every answer, the most reliable first."""
    if (milliseconds := retry_after(headers.get("retry-after-ms"), now)) is not None:
        yield milliseconds / 1000
    yield retry_after(headers.get("retry-after"), now)
    yield _retry_info(reply.body)
    yield used_up_for(headers, now)
    if found := _IN_WORDS.search(reply.words):
        yield _length(found[1])
    if "x-ratelimit-remaining" not in headers:  # cohere sends a reset alone
        yield _reset(headers.get("x-ratelimit-reset"), now or datetime.now(UTC))


def retry_after(value: object, now: datetime | None = None) -> float | None:
    """Seconds to wait from a Retry-After header: a number of seconds, or a date. Never negative."""
    if value is None:
        return None
    text = str(value).strip()
    try:
        asked = float(text)
        return min(max(0.0, asked), LONGEST_SECONDS) if math.isfinite(asked) else None
    except ValueError:
        pass
    try:
        moment = parsedate_to_datetime(text)
    except (ValueError, TypeError, IndexError):
        return None
    return _until(moment, now)


def used_up_for(headers: Mapping[str, Any], now: datetime | None = None) -> float | None:
    """Seconds until a call makes sense again, if the headers of a reply say that nothing is left (`X-RateLimit-Remaining: 0`);
    None if they do not.

    A reset of OpenAI and Anthropic is the time until the limit is full again. Where the limit counts requests, the next one is
    free after a fraction of that.
    """
    told = {name: value.strip() for name, value in lower(headers).items()}
    waits = []
    for limit, remaining, reset, of in _HEADERS:
        # Azure sends -1 and 0 for limits that it does not count.
        if told.get(remaining) != "0" or _number(told.get(limit, "1")) <= 0:
            continue
        after = _reset(told.get(reset), now or datetime.now(UTC))
        if after is not None:
            waits.append(after / _number(told.get(limit, "1")) if of == "-requests" else after)
    return max(waits, default=None)


def _number(text: str) -> float:
    try:
        number = float(text)
    except ValueError:
        return 1.0
    return number if math.isfinite(number) else 1.0


def _retry_info(body: Any, depth: int = 5) -> float | None:
    """Google's: `{"@type": "type.googleapis.com/google.rpc.RetryInfo", "retryDelay": "36s"}`."""
    if isinstance(body, Mapping):
        if _RETRY_INFO in str(body.get("@type", "")):
            return _length(str(body.get("retryDelay", "")))
        inner = list(body.values())
    else:
        inner = body if isinstance(body, list) else []
    found = (_retry_info(one, depth - 1) for one in inner) if depth else iter(())
    return next((after for after in found if after is not None), None)


def _reset(text: str | None, now: datetime) -> float | None:
    """When a limit is reset: seconds from now, an instant since 1970, a length like `6m0s`, or a date."""
    if text is None:
        return None
    try:
        number = float(text)
    except ValueError:
        after = _length(text)
        if after is None:
            after = _until_iso(text, now)
        return after if after is not None else retry_after(text, now)
    if not math.isfinite(number):
        return None
    return min(max(0.0, number - now.timestamp() if number > _AN_INSTANT else number), LONGEST_SECONDS)


def _length(text: str) -> float | None:
    try:
        return seconds(text)
    except UsageError:
        return None


def _until_iso(text: str, now: datetime) -> float | None:
    try:
        return _until(datetime.fromisoformat(text), now)
    except ValueError:
        return None


def _until(moment: datetime, now: datetime | None) -> float | None:
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    try:
        return min(max(0.0, (moment - (now or datetime.now(UTC))).total_seconds()), LONGEST_SECONDS)
    except OverflowError:
        return None
