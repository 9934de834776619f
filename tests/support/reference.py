"""The state machine as it should be: items, stages, workers and a clock in plain Python, and no database.

Written from docs/states.md and docs/guarantees.md, beside the engine and without its code: what may differ between the
two is a bug in one of them. Only two things are left to the engine and then judged here, because every answer that keeps
the rules is right: which numbers it gives to leases and items, and whether a completed stage hands its lease on to the
next one (`moved_to`).

The clock is one that nobody can set: however the time of day jumps, a retry in a minute stays a minute away.

One rule governs births: a stage begins for an item as soon as all stages before it have passed and nothing of it exists
yet. An item that was there before its stage is in the stage's backlog, and begins when the back-fill comes by.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

OPEN = ("pending", "retry_later", "in_progress")
PASSED = ("done", "skipped")
TOGETHER, SINGLE, ISOLATED = 0, 1, 2
#: After twenty deaths of workers that held other work, too, an item in a process of its own gets a worker to itself; three
#: deaths of workers that held nothing else count as its fault.
SOLITARY = ISOLATED + 20
DEATHS_IN_ISOLATION = 3

#: An item's key and a stage's name.
Place = tuple[str, str]


@dataclass(frozen=True)
class Verdict:
    """What a worker says of an attempt: done, skipped, failed, raised, snoozed or released."""

    kind: str
    value: object = None
    delay_us: int = 0
    company: int = 1
    #: What the handler reports to have paid, beside its calls.
    paid: int = 0


@dataclass(frozen=True)
class Waiting:
    attempts: int = 0
    alone: int = TOGETHER
    rerun: int = 0


@dataclass(frozen=True)
class Delayed:
    due_at: int
    attempts: int
    alone: int
    rerun: int


@dataclass(frozen=True)
class Lease:
    key: str
    stage: str
    worker: int
    attempt: int
    alone: int
    rerun: int
    #: What the stages before it had put out when it was granted.
    inputs: tuple[tuple[str, object], ...] = ()

    @property
    def place(self) -> Place:
        return self.key, self.stage


@dataclass(frozen=True)
class Outcome:
    state: str
    attempts: int
    token: int | None
    value: object = None
    inputs: tuple[tuple[str, object], ...] | None = None


@dataclass(eq=False)
class PaidCall:
    """A paid call that an attempt has begun; `done`, `rejected` or `free` once it is recorded, `intended` until then."""

    token: int
    place: Place
    amount: int
    state: str = "intended"


@dataclass
class Stage:
    name: str
    after: tuple[str, ...]
    max_attempts: int
    active: bool = True
    #: Items that were there before it and have not been looked at yet.
    backlog: set[str] = field(default_factory=set)


@dataclass
class Item:
    number: int
    priority: int


class Reference:
    """Every table as a dictionary, every operation as a few lines."""

    def __init__(self, now: int) -> None:
        #: In microseconds, on a clock that nobody can set.
        self.now = now
        self.stages: dict[str, Stage] = {}
        self.items: dict[str, Item] = {}
        self.waiting: dict[Place, Waiting] = {}
        self.delayed: dict[Place, Delayed] = {}
        self.leases: dict[int, Lease] = {}
        self.outcomes: dict[Place, Outcome] = {}
        #: Until when each living worker needs no further heartbeat.
        self.alive_until: dict[int, int] = {}
        #: What is told of each stage of an item, oldest first.
        self.events: list[tuple[str, str, str]] = []
        self.calls: list[PaidCall] = []

    # Pipelines and items ------------------------------------------------------------------------------------

    def register(self, shape: Mapping[str, Sequence[str]], max_attempts: int) -> None:
        """Stages that are new, back, or have others before them get a backlog: every item there is. What waited there
        without those before it having passed has not begun any more, unless a person wants it to run again."""
        for name, before in shape.items():
            after = tuple(before)
            known = self.stages.get(name)
            if known is None:
                self.stages[name] = Stage(name, after, max_attempts, backlog=set(self.items))
                continue
            moved = not known.active or known.after != after
            known.after, known.max_attempts, known.active = after, max_attempts, True
            if moved:
                known.backlog = set(self.items)
                self._withdraw(name)
        for stage in self.stages.values():
            if stage.name not in shape:
                stage.active = False
                stage.backlog = set()

    def add(self, key: str, number: int, priority: int) -> None:
        assert key not in self.items
        self.items[key] = Item(number, priority)
        for stage in self.active_stages():
            if not stage.after:
                self.waiting[key, stage.name] = Waiting()

    def backfilled(self, born: Collection[Place]) -> None:
        """The back-fill came by and these began."""
        for place in born:
            key, name = place
            assert key in self.stages[name].backlog, f"{place} began without having been in the backlog"
            self._begin(place)

    def backfill_is_over(self) -> None:
        """Nothing is left to look at: whoever could have begun has."""
        for place in self.owed(in_backlog=True):
            raise AssertionError(f"{place} was in the backlog, could begin, and did not")
        for stage in self.stages.values():
            stage.backlog.clear()

    # Workers ------------------------------------------------------------------------------------------------

    def join(self, worker: int, lease_us: int) -> None:
        self.alive_until[worker] = self.now + lease_us

    def beat(self, worker: int, lease_us: int) -> bool:
        if worker not in self.alive_until:
            return False
        self.alive_until[worker] = self.now + lease_us
        return True

    def leave(self, worker: int) -> None:
        self.alive_until.pop(worker, None)

    def remove_silent(self) -> set[int]:
        dead = {worker for worker, until in self.alive_until.items() if until <= self.now}
        for worker in dead:
            del self.alive_until[worker]
        return dead

    # Attempts -----------------------------------------------------------------------------------------------

    def next_in_line(self, stage: str, most: int) -> list[str]:
        """The keys a claim must take: best first."""
        keys = [key for key, name in self.waiting if name == stage]
        return sorted(keys, key=lambda key: (self.items[key].priority, self.items[key].number))[:most]

    def grant(self, token: int, worker: int, key: str, stage: str) -> Lease:
        """A claim took this one. The attempt counts from here."""
        was = self.waiting.pop((key, stage))
        lease = self.leases[token] = Lease(
            key, stage, worker, was.attempts + 1, was.alone, was.rerun, self._inputs(key, stage)
        )
        return lease

    def says(self, token: int, key: str, stage: str, verdict: Verdict, moved_to: str | None = None) -> bool:
        """A worker says how an attempt ended; False if its lease no longer stood, and nothing has changed."""
        lease = self.leases.get(token)
        if lease is None or lease.stage != stage:
            assert moved_to is None, f"lease {token} did not stand at {stage!r} and yet it moved on"
            self._tell("lease_lost", (key, stage))
            return False
        assert lease.key == key
        del self.leases[token]
        if verdict.paid:
            self.calls.append(PaidCall(token, lease.place, verdict.paid, "done"))
        {
            "done": self._passed,
            "skipped": self._passed,
            "failed": self._failed,
            "raised": self._raised,
            "snoozed": self._snoozed,
            "released": self._released,
        }[verdict.kind](token, lease, verdict, moved_to)
        return True

    def _passed(self, token: int, lease: Lease, verdict: Verdict, moved_to: str | None) -> None:
        old = self.outcomes.get(lease.place)
        value = verdict.value if verdict.kind == "done" else None
        self.outcomes[lease.place] = Outcome(verdict.kind, lease.attempt, token, value, lease.inputs)
        assert (old is not None) == bool(lease.rerun), f"{lease.place}: rerun={lease.rerun}, but before it: {old}"
        if lease.rerun:
            # The first time is told by the outcome alone.
            self._tell("completed" if verdict.kind == "done" else "skipped", lease.place)
        for stage in self._following(lease.stage):
            place = lease.key, stage.name
            if self._could_begin(place):
                self._begin(place)
                if stage.name == moved_to:
                    assert not lease.rerun, f"{place}: a stage that ran again handed its lease on"
                    del self.waiting[place]
                    inputs = self._inputs(lease.key, stage.name)
                    self.leases[token] = Lease(lease.key, stage.name, lease.worker, 1, TOGETHER, 0, inputs)
                    moved_to = None
        if lease.rerun:
            self._go_on(lease.key, lease.stage, old is None or old.state not in PASSED or old.value != value)
        assert moved_to is None, f"{lease.place}: its lease moved on to {moved_to!r}, which could not begin"

    def _failed(self, token: int, lease: Lease, verdict: Verdict, moved_to: str | None) -> None:
        self.outcomes[lease.place] = Outcome("failed", lease.attempt, token)
        self._tell("failed", lease.place)

    def _raised(self, token: int, lease: Lease, verdict: Verdict, moved_to: str | None) -> None:
        most = self.stages[lease.stage].max_attempts
        due_at = self.now + verdict.delay_us
        if verdict.company > 1:
            # Nobody knows whose fault it was: each must be alone before its last attempt counts.
            spent = min(lease.attempt, most - 1)
            self.delayed[lease.place] = Delayed(due_at, spent, max(lease.alone, SINGLE), lease.rerun)
        elif lease.attempt < most:
            self.delayed[lease.place] = Delayed(due_at, lease.attempt, lease.alone, lease.rerun)
        else:
            self.outcomes[lease.place] = Outcome("exhausted", lease.attempt, token)
            self._tell("exhausted", lease.place)
            return
        self._tell("attempt_failed", lease.place)

    def _snoozed(self, token: int, lease: Lease, verdict: Verdict, moved_to: str | None) -> None:
        due_at = self.now + verdict.delay_us
        self.delayed[lease.place] = Delayed(due_at, lease.attempt - 1, lease.alone, lease.rerun)
        self._tell("snoozed", lease.place)

    def _released(self, token: int, lease: Lease, verdict: Verdict, moved_to: str | None) -> None:
        self.waiting[lease.place] = Waiting(lease.attempt - 1, lease.alone, lease.rerun)
        self._tell("handed_back", lease.place)

    # Money --------------------------------------------------------------------------------------------------

    def intends(self, token: int, place: Place, amount: int) -> PaidCall | None:
        """A paid call is about to be made; nobody whose lease no longer stands may make one."""
        call = PaidCall(token, place, amount)
        if not self._may_record(call):
            return None
        self.calls.append(call)
        return call

    def recorded(self, call: PaidCall, state: str, amount: int) -> bool:
        """What became of a call; False if its attempt has ended, and nothing has changed."""
        if not self._may_record(call):
            return False
        call.state, call.amount = state, amount
        return True

    def money(self) -> dict[str, tuple[int, int, int, int]]:
        """By stage: what it cost, in how many payments, and what may have been charged, in how many calls. A call is in
        doubt as soon as the attempt that has begun it is over, however that came about."""
        sums: dict[str, list[int]] = {}
        for call in self.calls:
            if call.state in ("done", "rejected"):
                at = 0
            elif call.state == "intended" and not self._may_record(call):
                at = 2
            else:
                continue
            entry = sums.setdefault(call.place[1], [0, 0, 0, 0])
            entry[at] += call.amount
            entry[at + 1] += 1
        return {
            stage: (costs, payments, in_doubt, doubts) for stage, (costs, payments, in_doubt, doubts) in sums.items()
        }

    def _may_record(self, call: PaidCall) -> bool:
        lease = self.leases.get(call.token)
        return lease is not None and lease.place == call.place

    # Services -----------------------------------------------------------------------------------------------

    def reap(self, most: int) -> tuple[int, int]:
        """Free leases that no living worker vouches for; how many, and how many of them were the last attempt."""
        orphans = [token for token, lease in self.leases.items() if lease.worker not in self.alive_until]
        # What is isolated is freed in one go, while it can be seen what else its worker held.
        isolated = sum(self.leases[token].alone >= ISOLATED for token in orphans)
        free = sorted(orphans, key=lambda token: (-self.leases[token].alone, token))[: max(most, isolated)]
        held = Counter(lease.worker for lease in self.leases.values())
        exhausted = 0
        for token in free:
            lease = self.leases.pop(token)
            max_attempts = self.stages[lease.stage].max_attempts
            self._tell("lease_expired", lease.place)
            spent, alone = min(lease.attempt, max_attempts - 1), ISOLATED
            if lease.alone >= ISOLATED and held[lease.worker] > 1:
                # Nobody knows who it was, and in a process of its own it was hardly this one: that costs no attempt.
                spent, alone = lease.attempt - 1, max(lease.alone, min(lease.alone + 1, SOLITARY))
            elif lease.alone >= ISOLATED:
                deaths = max(0, lease.alone - SOLITARY) + 1
                if deaths >= DEATHS_IN_ISOLATION and lease.attempt >= max_attempts:
                    self.outcomes[lease.place] = Outcome("exhausted", lease.attempt, token)
                    self._tell("exhausted", lease.place)
                    exhausted += 1
                    continue
                alone = SOLITARY + deaths
            self.waiting[lease.place] = Waiting(spent, alone, lease.rerun)
        return len(free), exhausted

    def promoted(self, places: Collection[Place], most: int) -> None:
        """These were due and may be claimed."""
        due = {place for place, row in self.delayed.items() if row.due_at <= self.now}
        assert set(places) <= due, f"promoted before they were due: {set(places) - due}"
        assert len(places) == min(len(due), most), f"{len(due)} were due, {len(places)} were promoted"
        for place in places:
            was = self.delayed.pop(place)
            self.waiting[place] = Waiting(was.attempts, was.alone, was.rerun)

    # What a person does -------------------------------------------------------------------------------------

    def retry(self, states: Collection[str], stage: str | None, key: str | None) -> dict[str, int]:
        """All attempts are given back. What was finished runs again; what was delayed goes on."""
        count: dict[str, int] = {}
        for place, state in self._chosen(states, stage, key):
            if state == "retry_later":
                was = self.delayed.pop(place)
                self.waiting[place] = Waiting(0, was.alone, was.rerun)
            else:
                self.waiting[place] = Waiting(0, TOGETHER, 1)
            self._tell("retried", place)
            count[state] = count.get(state, 0) + 1
        return count

    def cancel(self, states: Collection[str], stage: str | None, key: str | None) -> dict[str, int]:
        """Open work is set aside; a re-run that is cancelled leaves what had passed before."""
        count: dict[str, int] = {}
        for place, state in self._chosen(states, stage, key):
            if state == "pending":
                spent = self.waiting.pop(place).attempts
            elif state == "retry_later":
                spent = self.delayed.pop(place).attempts
            else:
                [token] = [token for token, lease in self.leases.items() if lease.place == place]
                spent = self.leases.pop(token).attempt
            old = self.outcomes.get(place)
            if old is None or old.state not in PASSED:
                self.outcomes[place] = Outcome("cancelled", spent, None)
            self._tell("cancelled", place)
            count[state] = count.get(state, 0) + 1
        return count

    # What is there ------------------------------------------------------------------------------------------

    def states(self) -> dict[Place, tuple[str, int]]:
        """Every stage of every item that has begun: its state and its attempts. Refuses what lies in two places."""
        found: dict[Place, tuple[str, int]] = {}
        rows: list[tuple[Place, str, int]] = [(place, "pending", row.attempts) for place, row in self.waiting.items()]
        rows += [(place, "retry_later", row.attempts) for place, row in self.delayed.items()]
        rows += [(lease.place, "in_progress", lease.attempt) for lease in self.leases.values()]
        for place, state, attempts in rows:
            assert place not in found, f"{place} is both {found[place][0]} and {state}"
            found[place] = state, attempts
        for place, outcome in self.outcomes.items():
            found.setdefault(place, (outcome.state, outcome.attempts))
        return found

    def status(self, key: str) -> str:
        """The item as a whole, from its stages; one that its pipeline no longer has does not count."""
        states = self.states()
        active = {stage.name for stage in self.active_stages()}
        own = {state for (of, stage), (state, _) in states.items() if of == key and stage in active}
        if "in_progress" in own:
            return "in_progress"
        if own & {"pending", "retry_later"}:
            return "pending"
        if own & {"failed", "exhausted"}:
            return "failed"
        if "cancelled" in own:
            return "cancelled"
        return "done"

    def owed(self, *, in_backlog: bool = False) -> Iterable[Place]:
        """What could begin and has not, outside of any backlog: nobody would ever begin it. Must be empty, always."""
        for stage in self.active_stages():
            for key in self.items:
                if (key in stage.backlog) == in_backlog and self._could_begin((key, stage.name)):
                    yield key, stage.name

    def overspent(self) -> Iterable[str]:
        """Attempts beyond what a stage allows (V6). Must be empty, always."""
        for token, lease in self.leases.items():
            most = self.stages[lease.stage].max_attempts
            if not 1 <= lease.attempt <= most:
                yield f"lease {token} of {lease.place} is attempt {lease.attempt} of {most}"
        for place, row in [*self.waiting.items(), *self.delayed.items()]:
            if not 0 <= row.attempts < self.stages[place[1]].max_attempts:
                yield f"{place} waits with {row.attempts} attempts spent"

    def active_stages(self) -> list[Stage]:
        return [stage for stage in self.stages.values() if stage.active]

    # The parts ----------------------------------------------------------------------------------------------

    def _following(self, name: str) -> list[Stage]:
        return [stage for stage in self.active_stages() if name in stage.after]

    def _could_begin(self, place: Place) -> bool:
        return self._all_passed(place) and place not in self.outcomes and not self._is_open(place)

    def _all_passed(self, place: Place) -> bool:
        key, name = place
        return all(
            (key, before) in self.outcomes and self.outcomes[key, before].state in PASSED
            for before in self.stages[name].after
        )

    def _begin(self, place: Place) -> None:
        assert self._could_begin(place), f"{place} began twice, or too early"
        self.waiting[place] = Waiting()

    def _withdraw(self, name: str) -> None:
        for table in (self.waiting, self.delayed):
            for place, row in list(table.items()):
                if place[1] == name and not row.rerun and not self._all_passed(place):
                    del table[place]

    def _inputs(self, key: str, name: str) -> tuple[tuple[str, object], ...]:
        """What the stages before it have put out, as far as they have passed."""
        outcomes = {before: self.outcomes.get((key, before)) for before in self.stages[name].after}
        return tuple(
            sorted((name, had.value) for name, had in outcomes.items() if had is not None and had.state in PASSED)
        )

    def _go_on(self, key: str, name: str, changed: bool) -> None:
        """A stage ran again. What runs on an old output loses its lease; of what is behind it, the next that was made from
        something else runs again, once nothing before it is still to run."""
        near = {stage.name for stage in self._following(name)}
        for token, lease in list(self.leases.items()):
            if changed and lease.key == key and lease.stage in near:
                del self.leases[token]
                self.waiting[lease.place] = Waiting(lease.attempt - 1, lease.alone, lease.rerun)
                self._tell("superseded", lease.place)
        behind = self._behind(name)
        due = {one for one in behind if self._is_due((key, one), changed and one in near)}
        unsettled = due | {stage.name for stage in self.active_stages() if self._is_open((key, stage.name))}
        for stage in self.active_stages():
            if stage.name in due and not self._before(stage.name) & unsettled:
                self.waiting[key, stage.name] = Waiting(0, TOGETHER, 1)
                self._tell("reopened", (key, stage.name))

    def _is_due(self, place: Place, near: bool) -> bool:
        """What a person has set aside stays aside; what has nothing to be made from stays as it is."""
        had = self.outcomes.get(place)
        if had is None or had.state == "cancelled" or self._is_open(place) or not self._all_passed(place):
            return False
        if had.state not in PASSED:
            return near
        return had.inputs != self._inputs(*place)

    def _behind(self, name: str) -> set[str]:
        found: set[str] = set()
        new = {stage.name for stage in self._following(name)}
        while new:
            found |= new
            new = {stage.name for one in new for stage in self._following(one)} - found
        return found

    def _before(self, name: str) -> set[str]:
        """All active stages before one, near and far, with no gap between."""
        return {stage.name for stage in self.active_stages() if name in self._behind(stage.name)}

    def _is_open(self, place: Place) -> bool:
        return place in self.waiting or place in self.delayed or any(x.place == place for x in self.leases.values())

    def _chosen(self, states: Collection[str], stage: str | None, key: str | None) -> list[tuple[Place, str]]:
        """A stage that the pipeline no longer has is meant only if it is named."""
        stages = {stage} if stage is not None else {one.name for one in self.active_stages()}
        return [
            (place, state)
            for place, (state, _) in self.states().items()
            if state in states and place[1] in stages and key in (None, place[0])
        ]

    def _tell(self, event: str, place: Place) -> None:
        self.events.append((event, *place))


#: Events that say where a stage of an item went; `lease_lost` says that it went nowhere.
_LEADS_TO = {
    "attempt_failed": "retry_later",
    "snoozed": "retry_later",
    "lease_expired": "pending",
    "handed_back": "pending",
    "retried": "pending",
    "superseded": "pending",
    "reopened": "pending",
    "completed": "done",
    "skipped": "skipped",
    "failed": "failed",
    "exhausted": "exhausted",
    "cancelled": "cancelled",
}
#: Where a stage may have gone on to without an event: what is told by its outcome row, or by being open. None: it has
#: not begun, because a deployment put other stages before it.
_QUIETLY: dict[str, set[str | None]] = {
    "begun": {None, "pending", "in_progress", "done", "skipped"},
    "retry_later": {None, "retry_later", "pending", "in_progress", "done", "skipped"},
    "pending": {None, "pending", "in_progress", "done", "skipped"},
    "done": {"done"},
    "skipped": {"skipped"},
    "failed": {"failed"},
    "exhausted": {"exhausted"},
    "cancelled": {"cancelled", "done", "skipped"},
}


def history_allows(events: Iterable[str], state: str | None) -> bool:
    """Does the history of a stage of an item lead to where it is (V1)?"""
    where = "begun"
    for event in events:
        where = _LEADS_TO.get(event, where)
    return state in _QUIETLY[where]
