"""One question about an exception at a time, for callers that need no whole verdict."""

from __future__ import annotations

from datetime import datetime

from holdfast.errors import InDoubt, NotSent
from holdfast.model.outcome import CredentialRefused, OutOfCredit, RateLimited
from holdfast.providers.pauses import asked_pause
from holdfast.providers.reply import Reply, status_of
from holdfast.providers.verdicts import TOO_MANY, UNAVAILABLE, is_free, verdict

#: The request is wrong; the provider works.
_WRONG_REQUEST = frozenset({400, 404, 405, 406, 410, 411, 413, 414, 415, 422})
_PAY_FIRST = 402


def heard(error: BaseException, now: datetime | None = None) -> RateLimited | OutOfCredit | None:
    """The pause that an exception asks for, or the money; None for everything else. 503 and 529 count if they name a time."""
    if not isinstance(error, Exception):
        return None
    try:
        status, reply = status_of(error), Reply.read(error)
        words = reply.spoken(type(error).__name__)
        if status == _PAY_FIRST:
            return OutOfCredit(words)
        after = asked_pause(reply, now)
        if status == TOO_MANY or (status in UNAVAILABLE and after is not None):
            return RateLimited(after, words)
    except Exception:
        return None
    return None


def not_charged(error: BaseException, before: BaseException | None = None) -> str | None:
    """Why a paid call that raised this was certainly not charged; None if it may have been."""
    found = verdict(error, before=before)
    if found is None or not is_free(found, error):
        return None
    if found is error and not isinstance(error, NotSent):
        return "the provider refused it"
    status = None if isinstance(found, NotSent) else _status(error)
    return "it was never sent" if status is None else f"the provider answered {status}"


def key_refused(error: BaseException) -> str | None:
    """What the provider says about a key that it does not accept; None if this is something else."""
    found = verdict(error)
    return str(found.reason) if isinstance(found, CredentialRefused) else None


def is_wrong_request(error: BaseException) -> bool:
    """Whether only this request was wrong and the provider works."""
    return isinstance(error, Exception) and not isinstance(error, InDoubt) and _status(error) in _WRONG_REQUEST


def _status(error: BaseException) -> int | None:
    try:
        return status_of(error)
    except Exception:
        return None
