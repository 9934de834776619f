"""A boundary: a point at which killing a worker may make a difference, described so that another run finds it again.

It is a moment (before or after a commit of holdfast's, when a handler starts or returns, …), the fact by which it is
recognised, and how many times that has occurred. What else the same transaction does may differ from run to run.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

#: A kind (`claim`, `memo`, …) and its subject.
Fact = tuple[str, ...]

#: Handlers may commit many times on connections of their own. At most this many of a stage are killed at.
OWN_COMMITS_MOST = 20


class Moment(StrEnum):
    BEFORE_COMMIT = "before the commit"
    AFTER_COMMIT = "after the commit"
    STARTS = "as the handler starts"
    RETURNS = "as the handler returns"
    EFFECT = "after an effect, before the commit"
    COST = "after ctx.cost"
    OWN_COMMIT = "before a commit of the handler's own"


#: A transaction is recognised by the first of these facts that it has.
RANKS = ("memo", "done", "skipped", "failed", "exhausted", "submit", "retry_later", "claim")


def in_order(facts: Iterable[Fact]) -> list[Fact]:
    """The facts of a transaction, with the one that it is recognised by first."""
    return sorted(facts, key=lambda fact: RANKS.index(fact[0]) if fact[0] in RANKS else -1)


@dataclass(frozen=True, slots=True)
class Boundary:
    """The `nth` occurrence of a moment for a fact."""

    moment: Moment
    fact: Fact
    nth: int
    #: All facts of it in the undisturbed run, in words.
    text: str

    @property
    def order(self) -> dict[str, Any]:
        """The order for a worker that is to be killed there."""
        return {"moment": str(self.moment), "fact": list(self.fact), "nth": self.nth}


def spoken(fact: Fact) -> str:
    """A fact in words."""
    kind, place, *rest = fact
    if kind == "memo":
        name, state = rest
        return f"{place}: {'the intent of ' if state == 'intended' else ''}once({name!r})"
    if kind in ("claim", "submit"):
        return f"{kind} {'to ' if kind == 'submit' else ''}{place}"
    if kind == "effect":
        return f"{place}: {rest[0]}"
    return place if kind in ("run", "cost", "own") else f"{place} {kind.replace('_', ' ')}"


def boundaries(passed: Iterable[Sequence[Any]]) -> tuple[list[Boundary], list[str]]:
    """The boundaries of an undisturbed run, in order, and notes on what was left out."""
    times: Counter[tuple[Moment, Fact]] = Counter()
    found: list[Boundary] = []
    for word, *rest in passed:
        moment = Moment(word)
        facts = [tuple(fact) for fact in rest[0]]
        times.update((moment, fact) for fact in facts)
        text = f"{moment}: {', '.join(spoken(fact) for fact in facts)}"
        found.append(Boundary(moment, facts[0], times[moment, facts[0]], text))
    notes = []
    for (moment, fact), n in times.items():
        if moment is Moment.OWN_COMMIT and n > OWN_COMMITS_MOST:
            chosen = {1 + round(at * (n - 1) / (OWN_COMMITS_MOST - 1)) for at in range(OWN_COMMITS_MOST)}
            found = [one for one in found if (one.moment, one.fact) != (moment, fact) or one.nth in chosen]
            notes.append(f"{fact[1]} commits {n} times on connections of its own: killed at {len(chosen)} of these")
    return found, notes
