"""What an exception says about a call: the verdict, and whether the call was charged.

The rows are in `error_table.py`. This file decides which exception of a chain speaks, and what counts before the rows: what was
never sent, and what may have been charged by an earlier try.
"""

from __future__ import annotations

from datetime import datetime

from holdfast.errors import BadRequest, ContentFiltered, HoldfastError, InDoubt, InputTooLong, NotSent
from holdfast.model.outcome import CredentialRefused, OutOfCredit, Overloaded, RateLimited, RetryLater, Skip
from holdfast.providers.error_reply import Reply, library_of, said, status_of
from holdfast.providers.error_table import SIGNS, Verdict
from holdfast.providers.retry_after import asked_pause
from holdfast.providers.was_it_sent import NEVER_SENT, causes, lost_reply, was_never_sent, was_retried

__all__ = ["Verdict", "is_free", "is_of_provider", "is_wrong_request", "verdict"]

_VERDICTS = (
    RateLimited,
    OutOfCredit,
    CredentialRefused,
    InputTooLong,
    ContentFiltered,
    BadRequest,
    NotSent,
    InDoubt,
)
#: Errors of a provider's package that have no status: within a stream, or with the connection.
_WITHOUT_STATUS = frozenset({"APIError", "APIConnectionError", "APITimeoutError", "Timeout", "NoResponseError"})
_TOO_MANY, _UNAVAILABLE = 429, frozenset({503, 529})
#: The request is wrong; the server works.
_WRONG_REQUEST = frozenset({400, 404, 405, 406, 410, 411, 413, 414, 415, 422})


def verdict(
    error: BaseException, *, paid: bool = True, before: BaseException | None = None, now: datetime | None = None
) -> Verdict | None:
    """What an exception of a provider's package or of an HTTP client means; None if it is not recognised. Never raises.

    `paid=False` is for a handler's own requests: a plain HTTP client's 404 or timeout is then an ordinary failure, and only its
    rate limits and overloads are recognised. `before` is the exception that the caller was handling when it made the call, and
    `now` the time that dates are compared with.
    """
    try:
        if isinstance(error, _VERDICTS):
            return error
        if not isinstance(error, Exception) or isinstance(error, (HoldfastError, Skip, RetryLater)):
            return None
        return _judged(error, paid, before, now)
    except Exception:  # an exception may do anything when its attributes are read
        return None


def is_of_provider(error: BaseException) -> bool:
    """Whether an exception comes from a provider's package, and not from a plain HTTP client."""
    try:
        return bool(library_of(_speaker(error)))
    except Exception:
        return False


def is_wrong_request(error: BaseException) -> bool:
    """Whether only this request was wrong and the server works."""
    try:
        return not isinstance(error, InDoubt) and status_of(error) in _WRONG_REQUEST
    except Exception:
        return False


def is_free(verdict: Verdict, error: BaseException) -> bool:
    """Whether a call that ended with this verdict, because of this error, was certainly not charged."""
    if isinstance(verdict, InDoubt) or verdict is error:
        return not isinstance(verdict, InDoubt)
    try:
        if any(was_retried(one) for one in causes(error)):
            return False
        # A filter that withholds an answer does so after it was generated, and paid for.
        return not isinstance(verdict, ContentFiltered) or (_reply(_speaker(error)).status or 0) >= 400
    except Exception:
        return False


def _judged(error: Exception, paid: bool, before: BaseException | None, now: datetime | None) -> Verdict | None:
    speaker = _speaker(error)
    if not library_of(speaker) and not paid:
        return _of_plain_client(error, now)
    reply = _reply(speaker)
    name = type(speaker).__name__
    if (lost := lost_reply(error, before)) is not None:
        its = reply if lost is speaker else Reply.read(lost)
        return _rendered(InDoubt, its, type(lost).__name__, now)
    # litellm gives a status to errors that have none; a proxy's refusal has one, and the provider never saw the request.
    if (reply.status is None or reply.library == "litellm" or name in NEVER_SENT) and was_never_sent(error):
        return _rendered(NotSent, reply, name, now)
    for sign in SIGNS:
        if sign.fits(reply):
            return _rendered(sign.means, reply, name, now)
    if reply.library and not reply.names.isdisjoint(_WITHOUT_STATUS):
        return _rendered(InDoubt, reply, name, now)
    return None


def _speaker(error: BaseException) -> BaseException:
    """The exception that the package or the HTTP client raised: the error itself, or the first that it wraps on purpose."""
    told = (one for one in causes(error) if library_of(one) or status_of(one) is not None)
    return next(told, error)


def _reply(speaker: BaseException) -> Reply:
    reply = Reply.read(speaker)
    if reply.library != "litellm":
        return reply
    wrapped = causes(speaker)[1:]
    refusal = next((one for one in wrapped if library_of(one) != "litellm" and status_of(one) is not None), None)
    if refusal is not None:
        return _refused_beneath(reply, Reply.read(refusal), getattr(speaker, "is_pre_first_chunk", True))
    # It raises a 500 for a reply that it cannot read.
    unread = {name for one in wrapped if (name := type(one).__name__) == "JSONDecodeError"}
    return reply._replace(names=reply.names | unread)


def _refused_beneath(reply: Reply, refusal: Reply, is_all: bool) -> Reply:
    """litellm changes statuses and drops codes; the client's error that it wraps has what the provider sent. The names of its
    own errors say something about others only: `is_all` means that the refusal was all there was of a stream."""
    return reply._replace(
        names=reply.names - {"APIConnectionError"} - ({"MidStreamFallbackError"} if is_all else set()),
        status=refusal.status,
        headers=refusal.headers or reply.headers,
        body=refusal.body or reply.body,
        codes=reply.codes | refusal.codes,
        words=said(refusal.body) or reply.words,
    )


def _of_plain_client(error: BaseException, now: datetime | None) -> Verdict | None:
    """A page may answer 503 every time: without a time to wait, that is an ordinary failure."""
    status = status_of(error)
    if status != _TOO_MANY and status not in _UNAVAILABLE:
        return None
    reply = Reply.read(error)
    if status == _TOO_MANY:
        return _rendered(RateLimited, reply, type(error).__name__, now)
    if asked_pause(reply, now) is None:
        return None
    return _rendered(Overloaded, reply, type(error).__name__, now)


def _rendered(means: type[Verdict], reply: Reply, name: str, now: datetime | None) -> Verdict:
    """The verdict with the provider's words, and the pause if one is asked for."""
    words = reply.spoken(name)
    if issubclass(means, RateLimited):
        return means(asked_pause(reply, now), words)
    return means(words)
