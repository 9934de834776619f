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


#: Workers may die this often over work in a process of its own before that counts as the work's fault: while they held
#: nothing else that could have killed them, and while they did.
DEATHS_IN_ISOLATION = 3
DEATHS_IN_COMPANY = 20


def after_death(attempt: int, most: int, alone: int, company: bool = False) -> Next:
    """The worker died. The attempt counts, but it does not use up the last one: what the worker held comes back to run
    in a process of its own, where only its own death counts to the full, so that a killer cannot exhaust its neighbours.

    Work in isolation does not take its worker along: if the worker held other work too (`company`), the attempt is given
    back. If workers die over it all the same, again and again (it may exhaust the memory of the machine), it ends too;
    `alone` counts these deaths.
    """
    if alone < Alone.ISOLATED:
        return Next(State.PENDING, min(attempt, most - 1), Alone.ISOLATED)
    deaths = alone - Alone.ISOLATED + 1
    if deaths >= DEATHS_IN_COMPANY or (attempt >= most and deaths >= DEATHS_IN_ISOLATION and not company):
        return Next(State.EXHAUSTED, attempt, alone)
    return Next(State.PENDING, attempt - 1 if company else min(attempt, most - 1), alone + 1)
