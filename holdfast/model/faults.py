"""Errors of user code, made storable."""

from __future__ import annotations

import traceback

from holdfast.model import codec

ERROR_LENGTH = 2_000
TRACEBACK_LENGTH = 16_000


def describe(error: BaseException) -> tuple[str, str]:
    """An error as one storable text, and its traceback as another; never raises, whatever the error does."""
    try:
        said = str(error)
    except BaseException as worse:
        said = f"(its text cannot be had: {type(worse).__name__})"
    text = codec.plain_text(f"{type(error).__name__}: {said}" if said else type(error).__name__, ERROR_LENGTH)
    try:
        # Only the nearest frames: a runaway recursion has thousands.
        lines = traceback.TracebackException.from_exception(
            error, limit=-30, max_group_width=5, max_group_depth=3
        ).format()
        trace = codec.plain_text("".join(lines), TRACEBACK_LENGTH)
    except BaseException as worse:
        trace = f"{text}\n(its traceback cannot be had: {type(worse).__name__})"
    return text, trace
