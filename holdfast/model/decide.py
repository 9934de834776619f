"""What becomes of an attempt that did not succeed. Pure, and the only place that decides it."""

from __future__ import annotations

from typing import NamedTuple

from holdfast.model.states import Alone, State


class Next(NamedTuple):
    """Where the stage goes, the attempts it has then spent, and the company it may have next time."""

    state: State
    attempts: int
    alone: int


def after_failure(attempt: int, most: int, alone: int, company: int) -> Next:
    """The handler raised. `company` is how many items shared the call: with more than one, nobody knows whose fault
    it was, so each gets a call of its own before its last attempt counts."""
    if company > 1:
        return Next(State.RETRY_LATER, min(attempt, most - 1), max(alone, Alone.SINGLE))
    if attempt >= most:
        return Next(State.EXHAUSTED, attempt, alone)
    return Next(State.RETRY_LATER, attempt, alone)


def after_death(attempt: int, most: int, alone: int) -> Next:
    """The worker died. What it held beside others comes back to run in a process of its own: the attempt counts, but
    only a death in isolation may use up the last one, so that a killer cannot exhaust its neighbours."""
    if alone >= Alone.ISOLATED:
        return Next(State.EXHAUSTED if attempt >= most else State.PENDING, attempt, alone)
    return Next(State.PENDING, min(attempt, most - 1), Alone.ISOLATED)
