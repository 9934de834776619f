"""What a handler may answer besides a plain value."""

from __future__ import annotations

from holdfast.model import codec
from holdfast.model.durations import Duration, seconds
from holdfast.model.faults import ERROR_LENGTH

#: The output hash of a stage that put out nothing.
NOTHING = codec.digest(None)


class Skip(Exception):
    """There is nothing to do for this item at this stage; counts as done. Return it, or raise it from deeper down."""

    def __init__(self, reason: str = "") -> None:
        super().__init__(reason)
        self.reason = reason


class RetryLater(Exception):
    """Not now: come back after a while. Spends no attempt. Return it, or raise it from deeper down."""

    def __init__(self, after: Duration, reason: str = "") -> None:
        super().__init__(reason)
        self.after_seconds = seconds(after, what="RetryLater(after=…)")
        self.reason = reason


def reason_of(answer: Skip | RetryLater) -> str | None:
    """The reason as storable text, whatever it is."""
    try:
        return codec.plain_text(str(answer.reason), ERROR_LENGTH) or None
    except BaseException as worse:
        return f"(its reason cannot be had: {type(worse).__name__})"
