"""Outcomes: how an attempt ended, and what happens to its row."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa

from holdfast.adopt.rows.sql import Roles
from holdfast.adopt.table.held_row import Held
from holdfast.errors import LeaseLost, Permanent, UsageError
from holdfast.model.backoff import Backoff
from holdfast.model.durations import Duration, seconds
from holdfast.model.error_fingerprint import describe, storable
from holdfast.model.outcome import CredentialRefused, OutOfCredit, RateLimited, RetryLater, Skip

#: Delay before retrying a provider that gives no time of its own.
COOL_SECONDS = 30.0

#: When to retry a failed attempt: never, after this long, or with backoff.
Retry = Duration | Backoff | None

#: The work was interrupted, by a stop or by a cancelled task; it did not fail.
BROKEN_OFF = (KeyboardInterrupt, GeneratorExit, asyncio.CancelledError)


@dataclass(frozen=True, slots=True)
class Outcome:
    """`completed`, `failed`, `retried` or `released`, with the error and the seconds until the next attempt."""

    kind: str
    error: BaseException | str | None = None
    after_seconds: float | None = None
    refund: bool = True

    def changes(self) -> tuple[str, Roles]:
        """The new status, and what to write besides it."""
        if self.kind == "completed":
            return "completed", {"error": None}
        error = {} if self.kind == "released" else {"error": error_text(self.error or "failed")}
        if self.kind == "failed":
            return "failed", error
        due = {} if self.after_seconds is None else {"next_attempt": self.after_seconds}
        refund = {"attempts": -1} if self.kind == "released" and self.refund else {}
        return "queued", {"holder": None, **due, **error, **refund}


COMPLETED = Outcome("completed")


def outcome_of(returned: Any, error: BaseException | None, rows: Iterable[Held], retry: Retry) -> Outcome:
    """What a handler's return value, or its error, means for its rows."""
    answer = error if error is not None else returned
    if isinstance(answer, RetryLater):
        return Outcome("released", after_seconds=answer.after_seconds)
    if isinstance(answer, (RateLimited, OutOfCredit, CredentialRefused)):
        after = getattr(answer, "after_seconds", None)
        return Outcome("released", after_seconds=COOL_SECONDS if after is None else after)
    if error is None or isinstance(answer, Skip):
        return COMPLETED
    if isinstance(error, BROKEN_OFF):
        return Outcome("released", error)
    if isinstance(error, LeaseLost):
        # One row of several is lost. The others may be claimed at once, by the process that has the lost one.
        return Outcome("released", error, refund=False)
    found = list(rows)
    if retry is None or isinstance(error, Permanent) or any(is_spent(one) for one in found):
        return Outcome("failed", error)
    attempt = max((one.attempt for one in found), default=1)
    return Outcome("retried", error, pause_seconds(retry, attempt))


def pause_seconds(retry: Backoff | Duration, attempt: int) -> float:
    """The delay before the next attempt."""
    return retry.delay(attempt, random.Random()) if isinstance(retry, Backoff) else seconds(retry, what="retry")


def read_retry(retry: Retry, what: str) -> Retry:
    """Check a retry setting early, before an attempt fails."""
    if retry is None or isinstance(retry, Backoff):
        return retry
    if isinstance(retry, bool):
        raise UsageError(f"{what}: retry={retry!r} must be a Backoff, a length of time, or None")
    return seconds(retry, what=f"{what}: retry")


def is_spent(held: Held) -> bool:
    """Whether this was the last attempt."""
    limit = held.mapping.limit
    if isinstance(limit, sa.Column):
        found = held.row.get(held.mapping.attribute(limit))
        return isinstance(found, int) and held.attempt >= found
    return limit is not None and held.attempt >= limit


def error_text(error: BaseException | str) -> str:
    """The text to store for an error. For a database error: the driver's message, without the statement and its values."""
    if isinstance(error, str):
        return storable(error)
    if isinstance(error, sa.exc.DBAPIError) and error.orig is not None:
        error = error.orig
    return describe(error)[0]
