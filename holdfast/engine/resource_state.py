"""Resource gates: the state of a resource in this transaction: pace, cool-down, pause and circuit breaker. The row is locked
while deciding what may begin, or what a result means for later attempts."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import astuple, dataclass
from typing import Any, NamedTuple

from holdfast.engine.layout import layout
from holdfast.errors import UsageError
from holdfast.model.breaker import Breaker
from holdfast.model.did_you_mean import there_are
from holdfast.model.resource import COOL_SECONDS, ResourceSpec
from holdfast.store import Transaction

#: In thousandths of the full pace: the full pace and the slowest; and how long it takes to recover from none to full.
FULL_PACE = 1000
LEAST_PACE = 15
RECOVERY_SECONDS = 600.0

#: Why a gate is closed: by a person or a provider, until resumed or for a time; or by a budget, checked on every claim.
BY_PERSON = 1
BY_BUDGET = 2


class Shut(NamedTuple):
    """A pause of a resource: a word to act on, words to read, and when it ends by itself."""

    reason: str
    text: str
    until: int | None


@dataclass(slots=True)
class Gate:
    """A resource: its limits and its current state."""

    id: int
    spec: ResourceSpec
    pace: int
    paced_at: int
    cool_until: int
    paused: int
    reason: str | None
    retry_after: int | None
    breaker: Breaker

    def pace_now(self, now: int) -> float:
        """The share of the full rate that may be used: reduced after a rate limit, then growing back."""
        grown = self.pace + FULL_PACE * (now - self.paced_at) / 1e6 / RECOVERY_SECONDS
        return min(FULL_PACE, grown) / FULL_PACE if self.pace < FULL_PACE else 1.0

    def slow_down(self, now: int) -> None:
        """Halve the pace."""
        self.pace = max(LEAST_PACE, round(self.pace_now(now) * FULL_PACE / 2))
        self.paced_at = now

    def pause(self, why: int, reason: str, until: int | None) -> None:
        self.paused, self.reason, self.retry_after = why, reason, until

    def resume(self) -> None:
        self.paused, self.reason, self.retry_after = 0, None, None

    def shut(self, now: int) -> Shut | None:
        """The pause that a person or a provider has asked for, if one stands."""
        if self.paused == BY_PERSON and (self.retry_after is None or now < self.retry_after):
            return Shut("paused", f"is paused: {self.reason or 'by a person'}", self.retry_after)
        if now < self.cool_until:
            return Shut("cool_down", "asked for a pause and is cooling down", self.cool_until)
        return None


def lock_gates(tx: Transaction, resources: Collection[int]) -> dict[int, Gate]:
    """The resources, locked until the transaction ends."""
    return _gates(tx, tx.run("lock_gates", ids=sorted(resources)))


def read_gates(tx: Transaction, resources: Collection[int]) -> dict[int, Gate]:
    return _gates(tx, tx.run("read_gates", ids=sorted(resources)))


def save_gates(tx: Transaction, gates: Iterable[Gate]) -> None:
    tx.run_rows("save_gates", [_row(gate) for gate in gates], now=tx.now)


def pause_of(tx: Transaction, name: str) -> tuple[str, float] | None:
    """Why a call that names this resource must wait now, and for how many seconds; None if it need not."""
    known = layout(tx)
    row = known.resource(name)
    if row is None or row.is_own:
        there = sorted(one.spec.name for one in known.resources.values() if not one.is_own)
        raise UsageError(
            f"there is no resource {name!r}, and nothing was sent; name an existing one, or define it with "
            f"resources={{{name!r}: {{…}}}}; {there_are(name, there)}"
        )
    shut = read_gates(tx, [row.id])[row.id].shut(tx.now)
    if shut is None:
        return None
    seconds = COOL_SECONDS if shut.until is None else (shut.until - tx.now) / 1e6
    return f"resource {name!r} {shut.text}", seconds


def lock_resources(tx: Transaction, stages: Iterable[int], named: Iterable[str | None] = ()) -> None:
    """Lock the resources of all these stages, and those that calls name, in order: two transactions that need several
    never deadlock."""
    known = layout(tx)
    numbers = {number for stage in stages for number in known.resources_of(stage)}
    numbers.update(row.id for name in {*named} if name is not None and (row := known.resource(name)) is not None)
    if numbers:
        tx.run("lock_gates", ids=sorted(numbers))


def _row(gate: Gate) -> tuple[Any, ...]:
    shut = (gate.paused, gate.reason, gate.retry_after)
    return gate.id, gate.pace, gate.paced_at, gate.cool_until, *shut, *astuple(gate.breaker)


def _gates(tx: Transaction, rows: Iterable[tuple[Any, ...]]) -> dict[int, Gate]:
    known = layout(tx).resources
    gates: dict[int, Gate] = {}
    for id_, pace, paced_at, cool_until, paused, reason, retry_after, *breaker in rows:
        if id_ in known:
            spec, stands = known[id_].spec, Breaker(*breaker)
            if spec.breaker is None:
                # The breaker was removed from the resource: its old state blocks nobody.
                stands = Breaker(votes_from=stands.votes_from)
            gates[id_] = Gate(id_, spec, pace, paced_at, cool_until, paused, reason, retry_after, stands)
    return gates
