"""What a handler may answer besides a plain value."""

from __future__ import annotations

import re

from holdfast.model import codec
from holdfast.model.durations import Duration, seconds
from holdfast.model.error_fingerprint import storable

#: How a length of time begins.
_NUMBER = re.compile(r"\s*[-+.]?\d")
#: The output hash of a stage without a result.
NOTHING = codec.digest(None)


class Skip(Exception):
    """There is nothing to do for this item at this stage; counts as done. Return it, or raise it from deeper down."""

    def __init__(self, reason: str = "") -> None:
        super().__init__(reason)
        self.reason = reason


class RetryLater(Exception):
    """Not now: try again after a while. Spends no attempt. Return it, or raise it from deeper down."""

    def __init__(self, after: Duration, reason: str = "") -> None:
        super().__init__(reason)
        self.after_seconds = seconds(after, what="RetryLater(after=…)")
        self.reason = reason


class ProviderPause(Exception):
    """What a provider says to everyone who uses it, not to one item."""

    reason: str
    #: The resource that is meant; None for the first that the stage uses.
    resource: str | None = None


class RateLimited(ProviderPause):
    """The provider asks for a pause. Raise it: every user of the resource waits that long, and no attempt is spent. Without a
    time, the `cool` setting of the resource decides. A text that does not begin with a number is a reason."""

    def __init__(self, retry_after: Duration | None = None, reason: str = "") -> None:
        length = retry_after
        if isinstance(retry_after, str) and not reason and not _NUMBER.match(retry_after):
            # As its sisters are raised. An error here would spend the attempt that this is meant to spare.
            length, reason = None, retry_after
        super().__init__(reason)
        what = f"{type(self).__name__}(retry_after=…)"
        self.after_seconds = None if length is None else seconds(length, what=what)
        self.reason = reason


class Overloaded(RateLimited):
    """The provider cannot keep up at the moment. Raise it: the same happens as after `RateLimited`."""


class OutOfCredit(ProviderPause):
    """The provider wants money first. Raise it: the resource is paused at once, and no attempt is spent."""

    def __init__(self, reason: str = "") -> None:
        super().__init__(reason)
        self.reason = reason


class CredentialRefused(ProviderPause):
    """The provider does not accept the key. Raise it: no attempt is spent, and after three in a row without a success the
    resource is paused (the stage, if it uses none) until a person resumes it."""

    def __init__(self, reason: str = "") -> None:
        super().__init__(reason)
        self.reason = reason


def reason_of(answer: Skip | RetryLater | ProviderPause) -> str | None:
    """The reason as storable text, whatever it is."""
    try:
        return storable(str(answer.reason)) or None
    except BaseException as worse:
        return f"(its reason cannot be read: {type(worse).__name__})"
