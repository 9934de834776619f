"""Errors of user code, made storable: what they say without the secrets they may say it with."""

from __future__ import annotations

import traceback

from holdfast.model import codec
from holdfast.model.redact import redact

ERROR_LENGTH = 2_000
TRACEBACK_LENGTH = 16_000


def storable(text: str, limit: int = ERROR_LENGTH) -> str:
    """Text of user code that a database can hold, without secrets. They go before it is cut: half of one is still one."""
    return codec.plain_text(redact(text), limit)


def describe(error: BaseException) -> tuple[str, str]:
    """An error as one storable text, and its traceback as another; never raises, whatever the error does."""
    try:
        said = str(error)
    except BaseException as worse:
        said = f"(its text cannot be had: {type(worse).__name__})"
    text = storable(f"{type(error).__name__}: {said}" if said else type(error).__name__)
    try:
        # Only the nearest frames: a runaway recursion has thousands.
        lines = traceback.TracebackException.from_exception(
            error, limit=-30, max_group_width=5, max_group_depth=3
        ).format()
        trace = storable("".join(lines), TRACEBACK_LENGTH)
    except BaseException as worse:
        trace = f"{text}\n(its traceback cannot be had: {type(worse).__name__})"
    return text, trace
