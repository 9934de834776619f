"""Admit: claim no more than the resources of a stage allow, in the transaction that takes rate, slots and money.

Only for stages with resources. Slots are counted from the leases that exist, and money is reserved by lease. So what a dead
worker held is free again as soon as its leases are.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from holdfast.engine.claim import Lease, claim, claim_these
from holdfast.engine.layout import layout
from holdfast.engine.resource_state import BY_BUDGET, BY_PERSON, Gate, lock_gates, read_gates, save_gates
from holdfast.model.budget_day import day_of, next_day_at
from holdfast.model.money import spoken
from holdfast.model.rate import Bucket
from holdfast.store import Transaction

#: The bucket of calls; the others are named after their unit.
CALLS = ""
#: A probe is chosen among this many items at the head of the queue.
MOST_PROBES = 100


@dataclass(frozen=True, slots=True)
class Weight:
    """What an attempt is expected to use: money in millionths, and units by name."""

    money: int = 0
    units: Mapping[str, float] = field(default_factory=dict)


LEAST = Weight()


class Spent(NamedTuple):
    """Money spent on a resource, in millionths: charged or in doubt, and what of it is in doubt; in all and today."""

    in_all: int = 0
    in_doubt: int = 0
    today: int = 0
    in_doubt_today: int = 0

    @property
    def costs(self) -> int:
        return self.in_all - self.in_doubt


NOTHING_SPENT = Spent()


class Blocked(NamedTuple):
    """Why nothing more may begin now, and when that ends by itself."""

    #: A word to act on: `paused`, `cool_down`, `breaker`, `rate`, `concurrency`, `units`, `budget`.
    reason: str
    text: str
    until: int | None
    resource: str


class Admitted(NamedTuple):
    leases: list[Lease]
    #: Why no more were admitted, if a limit was reached.
    blocked: Blocked | None
    #: Whether there was less work than the limits allowed.
    dry: bool


def claim_within_limits(
    tx: Transaction,
    worker: int,
    stage: int,
    most: int,
    weight: Weight,
    peeked: Sequence[tuple[int, Weight]] | None = None,
) -> Admitted:
    """Claim up to `most` items of a stage that uses resources. `peeked` are the next items with the expected use of each,
    where that differs; without it, each is expected to use `weight`."""
    tallies = _tallies(tx, stage, lock=True)
    wanted = [(item, one) for item, one in peeked[:most]] if peeked is not None else [(0, weight)] * most
    blocked: Blocked | None = None
    chosen: list[tuple[int, Weight]] = []
    for item, one in wanted:
        blocked = next((why for tally in tallies if (why := tally.refuses(one))), None)
        if blocked is not None:
            break
        for tally in tallies:
            tally.take(one)
        chosen.append((item, one))
    if blocked is not None and blocked.reason == "budget" and not chosen:
        _stop_for_budget(tx, tallies, blocked)
    if not chosen:
        _save(tx, tallies)
        return Admitted([], blocked, dry=not wanted)
    if peeked is None:
        probes = any(tally.probes for tally in tallies)
        leases = _claim_a_probe(tx, worker, stage) if probes else claim(tx, worker, stage, len(chosen))
        used = [weight] * len(leases)
    else:
        leases = claim_these(tx, worker, stage, [item for item, _ in chosen])
        weights = dict(chosen)
        used = [weights[lease.item] for lease in leases]
    for lease, one in zip(leases, used, strict=True):
        lease.units = one.units
    for tally in tallies:
        tally.settle(leases, used)
    _save(tx, tallies)
    tx.run_rows("reserve", [row for tally in tallies for row in tally.reservations])
    # Another worker may have claimed peeked items first, and refused ones are still waiting: in neither case is the queue
    # empty.
    dry = len(leases) < len(chosen) if peeked is None else blocked is None and len(peeked) < most
    return Admitted(leases, blocked, dry)


def _claim_a_probe(tx: Transaction, worker: int, stage: int) -> list[Lease]:
    """Claim an item that has not failed yet, if there is one: otherwise a bad item could be probed again and again."""
    rows = tx.run("peek_waiting", stage=stage, most=MOST_PROBES)
    return claim_these(tx, worker, stage, [min(rows, key=lambda row: row[3])[0]]) if rows else []


def look(tx: Transaction, stage: int) -> Blocked | None:
    """Why the next attempt at a stage cannot begin now. Only reads. Its cost is not known here, but the latest claim has
    recorded whether the budget was too small."""
    tallies = _tallies(tx, stage, lock=False)
    return next((why for tally in tallies if (why := tally.refuses(LEAST) or tally.stopped_for_budget())), None)


class _Tally:
    """What is left of one resource, counted down as attempts are admitted."""

    def __init__(
        self, gate: Gate, now: int, held: int, used: Mapping[str, int], reserved: int, spent: Spent, probing: bool
    ) -> None:
        spec = gate.spec
        self.gate = gate
        self.changed = False
        self.buckets: dict[str, int] = {}
        self.reservations: list[tuple[int, int, int]] = []
        self._now, self._now_ns = now, now * 1000
        self._used = dict(used)
        self._held = held
        self._spent = spent
        self._reserved = reserved
        self._taken: list[Weight] = []
        self._probe_stands = probing
        pace = gate.pace_now(now)
        self._rates: dict[str, Bucket] = {}
        if spec.rate is not None:
            self._rates[CALLS] = Bucket.of(spec.rate, spec.bursts, pace)
        for unit, rate in spec.units.items():
            self._rates[unit] = Bucket.of(rate, rate.default_burst, pace)
        if CALLS in self._rates:
            # It cannot be further ahead than a burst, unless the clock was set back.
            furthest = self._now_ns + round(self._rates[CALLS].burst * self._rates[CALLS].interval_ns)
            self._used[CALLS] = min(self._used.get(CALLS, 0), furthest)
        self._ahead = {unit: self._used.get(unit, 0) for unit in self._rates}

    @property
    def probes(self) -> bool:
        return self.gate.breaker.is_open

    def refuses(self, weight: Weight) -> Blocked | None:
        """Why this attempt may not begin now, after those taken so far."""
        gate, spec, now = self.gate, self.gate.spec, self._now
        if (shut := gate.shut(now)) is not None:
            return self._blocked(*shut)
        if gate.breaker.is_open:
            if now < (gate.breaker.open_until or 0):
                return self._blocked("breaker", "fails too often; it is tried again later", gate.breaker.open_until)
            if self._taken or not gate.breaker.may_probe(now, self._probe_stands):
                return self._blocked(
                    "breaker", "fails too often; one attempt is finding out whether it works again", None
                )
        if spec.concurrency is not None and self._held + len(self._taken) >= spec.concurrency:
            return self._blocked("concurrency", f"has all its {spec.concurrency} slots in use", None)
        if self._money_left is not None and (weight.money > self._money_left or self._money_left <= 0):
            return self._no_money(weight)
        for unit, bucket in self._rates.items():
            # Without a known weight, assume some of each unit.
            n = 1 if unit == CALLS or weight is LEAST else weight.units.get(unit, 0)
            if n and not bucket.fits(self._ahead[unit], self._now_ns, n):
                until = -(-bucket.free_at(self._ahead[unit], n) // 1000)
                what = f"may be used {spec.rate.text}" if unit == CALLS and spec.rate else f"has used up its {unit}"
                return self._blocked("rate" if unit == CALLS else "units", what, max(until, now + 1))
        return None

    def stopped_for_budget(self) -> Blocked | None:
        gate = self.gate
        if gate.paused != BY_BUDGET or (gate.retry_after is not None and gate.retry_after <= self._now):
            return None
        return Blocked("budget", gate.reason or "", gate.retry_after, gate.spec.name)

    def take(self, weight: Weight) -> None:
        self._taken.append(weight)
        for unit, bucket in self._rates.items():
            n = 1 if unit == CALLS else weight.units.get(unit, 0)
            self._ahead[unit] = bucket.take(self._ahead[unit], self._now_ns, n)

    def settle(self, leases: Sequence[Lease], used: Sequence[Weight]) -> None:
        """Charge what the claimed leases use; they may be fewer than were admitted."""
        if not leases:
            return
        for unit, bucket in self._rates.items():
            ahead = self._used.get(unit, 0)
            for one in used:
                ahead = bucket.take(ahead, self._now_ns, 1 if unit == CALLS else one.units.get(unit, 0))
            self.buckets[unit] = ahead
        if self.gate.spec.has_budget:
            self.reservations = [
                (lease.id, self.gate.id, one.money) for lease, one in zip(leases, used, strict=True) if one.money
            ]
            if self.gate.paused == BY_BUDGET:
                self.gate.resume()
                self.changed = True
        if self.probes:
            self.gate.breaker = self.gate.breaker.probed_by(leases[0].id)
            self.changed = True
        if self.gate.paused == BY_PERSON:
            # The pause has ended.
            self.gate.resume()
            self.changed = True

    @property
    def _money_left(self) -> int | None:
        spec = self.gate.spec
        if not spec.has_budget:
            return None
        aside = self._reserved + sum(one.money for one in self._taken)
        lefts = [
            limit - spent - aside
            for limit, spent in ((spec.budget, self._spent.in_all), (spec.budget_per_day, self._spent.today))
            if limit is not None
        ]
        return min(lefts)

    def _no_money(self, weight: Weight) -> Blocked:
        spec = self.gate.spec
        aside = self._reserved + sum(one.money for one in self._taken)
        in_all = spec.budget is not None and spec.budget - self._spent.in_all - aside < max(weight.money, 1)
        limit, spent, in_doubt = (
            (spec.budget, self._spent.in_all, self._spent.in_doubt)
            if in_all
            else (spec.budget_per_day, self._spent.today, self._spent.in_doubt_today)
        )
        parts = [f"{spoken(spent)} spent"]
        if in_doubt:
            parts[0] += f" ({spoken(in_doubt)} of it in doubt)"
        if aside:
            parts.append(f"{spoken(aside)} set aside for running work")
        parts.append(f"{spoken(weight.money)} more would not fit" if weight.money else "nothing is left")
        what = f"has a budget of {spoken(limit or 0)}{'' if in_all else ' per day'}: {', '.join(parts)}"
        return self._blocked("budget", what, None if in_all else next_day_at(self._now, spec.zone))

    def _blocked(self, reason: str, what: str, until: int | None) -> Blocked:
        return Blocked(reason, f"{called(self.gate.spec.name)} {what}", until, self.gate.spec.name)


def called(name: str) -> str:
    """How to call a resource, or the limits of a pipeline or a stage, in messages."""
    if not name.startswith("@"):
        return f"resource {name!r}"
    pipeline, _, stage = name[1:].partition("/")
    return f"stage {stage!r}" if stage else f"pipeline {pipeline!r}"


def _tallies(tx: Transaction, stage: int, *, lock: bool) -> list[_Tally]:
    known = layout(tx)
    numbers = known.resources_of(stage)
    gates = (lock_gates if lock else read_gates)(tx, numbers)
    specs = {number: gate.spec for number, gate in gates.items()}
    used: dict[int, dict[str, int]] = {}
    if any(spec.rate or spec.units for spec in specs.values()):
        for resource, unit, until in tx.run("read_buckets", ids=list(gates)):
            used.setdefault(resource, {})[unit] = until
    slots: dict[int, int] = {}
    users = sorted({user for number, spec in specs.items() if spec.concurrency for user in known.users_of(number)})
    if users:
        slots = dict(tx.run("count_slots", stages=users))
    reserved: dict[int, int] = {}
    spent: dict[int, Spent] = {}
    if paid := {number: spec for number, spec in specs.items() if spec.has_budget}:
        reserved = dict(tx.run("read_reserved", ids=list(paid)))
        days = [(number, day_of(tx.now, spec.zone)) for number, spec in paid.items()]
        spent = {resource: Spent(*sums) for resource, *sums in tx.run_rows("read_spent", days)}
    probes = [gate.breaker.probe for gate in gates.values() if gate.breaker.probe is not None]
    standing = {row[0] for row in tx.run("standing_leases", leases=probes)} if probes else set()
    return [
        _Tally(
            gate,
            tx.now,
            sum(slots.get(user, 0) for user in known.users_of(number)),
            used.get(number, {}),
            reserved.get(number, 0),
            spent.get(number, NOTHING_SPENT),
            gate.breaker.probe in standing,
        )
        for number, gate in gates.items()
    ]


def _stop_for_budget(tx: Transaction, tallies: Sequence[_Tally], blocked: Blocked) -> None:
    """Mark the resource as stopped by its budget, with a reason and an end time, and record that once."""
    for tally in tallies:
        gate = tally.gate
        stopped = (BY_BUDGET, blocked.until, blocked.text)
        if gate.spec.name == blocked.resource and (gate.paused, gate.retry_after, gate.reason) != stopped:
            if gate.paused != BY_BUDGET or (gate.retry_after is not None and gate.retry_after <= tx.now):
                tx.record("budget_reached", resource=gate.spec.name, text=blocked.text, until=blocked.until)
            gate.pause(BY_BUDGET, blocked.text, blocked.until)
            tally.changed = True


def _save(tx: Transaction, tallies: Sequence[_Tally]) -> None:
    rows = [(tally.gate.id, unit, until) for tally in tallies for unit, until in tally.buckets.items()]
    tx.run_rows("save_buckets", rows)
    if changed := [tally.gate for tally in tallies if tally.changed]:
        save_gates(tx, changed)
