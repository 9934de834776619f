"""Validate the answer of a sub-step: a rejected one is bought again by the next attempt, and not too often."""

from __future__ import annotations

from typing import Any

from holdfast.errors import Rejected, RejectedTooOften
from holdfast.model import codec
from holdfast.model.error_fingerprint import storable
from holdfast.worker.once_decision import SubStep
from holdfast.worker.once_options import Terms, name_of


def judge(terms: Terms, text: str) -> tuple[str | None, Any]:
    """Why an answer is rejected, None if it is not; and what the handler gets."""
    validate, parse = terms.validate, terms.parse
    if validate is not None:
        try:
            if validate(codec.decode(text)) is False:
                return f"{name_of(validate)} said no", None
        except (Rejected, ValueError) as error:
            return storable(f"{type(error).__name__}: {error}"), None
    answer = codec.decode(text)
    try:
        return None, answer if parse is None else parse(answer)
    except Rejected as error:
        return storable(f"{type(error).__name__}: {error}"), None


def rejection(step: SubStep, reason: str) -> Rejected | RejectedTooOften:
    """The error of an attempt whose answer is rejected now."""
    times = step.rejections + 1
    # A multiple, because a person who retries the item allows as many rejections again.
    if times % step.terms.rejections == 0:
        return RejectedTooOften(f"{step.where}: its answer was rejected {times} times, the last time because: {reason}")
    return Rejected(f"{step.where}: the answer was rejected: {reason}; the next attempt calls again")
