"""What happens after an attempt that did not succeed. Pure, and the only place that decides it."""

from __future__ import annotations

from typing import NamedTuple

from holdfast.model.states import Alone, State


class Next(NamedTuple):
    """The next state, the attempts spent by then, and how isolated the next attempt must be."""

    state: State
    attempts: int
    alone: int


def after_failure(attempt: int, most: int, alone: int, company: int) -> Next:
    """The handler raised. `company` is how many items shared the call. If there were several, nobody knows which one failed,
    so each gets a call of its own before its last attempt counts."""
    if company > 1:
        return Next(State.RETRY_LATER, min(attempt, most - 1), max(alone, Alone.SINGLE))
    if attempt >= most:
        return Next(State.EXHAUSTED, attempt, alone)
    return Next(State.RETRY_LATER, attempt, alone)


#: How many workers must die while they hold one item alone, in a process of its own, before the item is to blame: a person or
#: the system may kill a worker too.
DEATHS_IN_ISOLATION = 3


def after_death(attempt: int, most: int, alone: int, company: bool) -> Next:
    """The worker died. `company` says whether it held other work too.

    The attempt counts, but it is not the last one: what the worker held comes back to run in a process of its own, where a
    killer ends only itself. Work that ran there did not take its worker along, as a rule. So if the worker held anything
    else, the attempt is given back, however often that happens. After many such deaths the item gets a worker to itself
    for one attempt at a time; only workers that die then can exhaust it (it may use up the memory of the machine).
    """
    if alone < Alone.ISOLATED:
        return Next(State.PENDING, min(attempt, most - 1), Alone.ISOLATED)
    if company:
        return Next(State.PENDING, attempt - 1, alone if alone >= Alone.SOLITARY else alone + 1)
    deaths = max(alone - Alone.SOLITARY, 0) + 1
    if attempt >= most and deaths >= DEATHS_IN_ISOLATION:
        return Next(State.EXHAUSTED, attempt, alone)
    return Next(State.PENDING, min(attempt, most - 1), Alone.SOLITARY + deaths)
