"""What an exception of an HTTP client says about the provider: wait, or pay. By its looks, so that no client is imported."""

from __future__ import annotations

import math
from collections.abc import Mapping
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any

from holdfast.errors import UsageError
from holdfast.model.durations import LONGEST_SECONDS, seconds
from holdfast.model.outcome import OutOfCredit, RateLimited

TOO_MANY, UNAVAILABLE, PAY_FIRST = 429, 503, 402
#: A number of seconds beyond this is one since 1970.
_AN_INSTANT = 1e9


def heard(error: BaseException, now: datetime | None = None) -> RateLimited | OutOfCredit | None:
    """Read an exception of httpx, requests, aiohttp, urllib and their like: 429 or 503 with a Retry-After header, 429 without
    one, or 402. None for everything else."""
    if not isinstance(error, Exception):
        return None
    try:
        status, headers = _status(error), _headers(error)
    except Exception:
        return None
    if status == PAY_FIRST:
        return OutOfCredit(f"{type(error).__name__}: the provider answered 402")
    if status not in (TOO_MANY, UNAVAILABLE):
        return None
    after = retry_after(headers.get("retry-after"), now)
    if after is None:
        after = used_up_for(headers, now)
    if after is None and status == UNAVAILABLE:
        return None
    return RateLimited(after, f"{type(error).__name__}: the provider answered {status}")


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
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    return min(max(0.0, (moment - (now or datetime.now(UTC))).total_seconds()), LONGEST_SECONDS)


def used_up_for(headers: Mapping[str, Any], now: datetime | None = None) -> float | None:
    """Seconds for which a provider's headers say that nothing is left (`X-RateLimit-Remaining: 0` and when it is reset); None
    if they do not say so."""
    told = {str(name).lower(): str(value).strip() for name, value in headers.items()}
    for prefix in ("x-ratelimit", "ratelimit", "x-rate-limit"):
        for suffix in ("", "-requests", "-tokens"):
            if told.get(f"{prefix}-remaining{suffix}") == "0":
                return _reset(told.get(f"{prefix}-reset{suffix}"), now or datetime.now(UTC))
    return None


def _reset(text: str | None, now: datetime) -> float | None:
    """When a limit is reset: seconds from now, an instant since 1970, or a length like `6m0s`."""
    if text is None:
        return None
    try:
        number = float(text)
    except ValueError:
        try:
            return seconds(text)
        except UsageError:
            return retry_after(text, now)
    if not math.isfinite(number):
        return None
    return min(max(0.0, number - now.timestamp() if number > _AN_INSTANT else number), LONGEST_SECONDS)


def _status(error: BaseException) -> int | None:
    response = getattr(error, "response", None)
    for holder, name in (
        (response, "status_code"), (response, "status"), (error, "status_code"), (error, "status"), (error, "code"),
    ):  # fmt: skip
        value = getattr(holder, name, None)
        if isinstance(value, int) and not isinstance(value, bool):
            return value
    return None


def _headers(error: BaseException) -> dict[str, Any]:
    response = getattr(error, "response", None)
    for holder in (response, error):
        headers: Any = getattr(holder, "headers", None) or getattr(holder, "hdrs", None)
        if hasattr(headers, "items"):
            return {str(name).lower(): value for name, value in headers.items()}
    return {}
