"""Money adds up after every step: what `limits` and `costs` show is what a reference in plain Python has counted.

A walk over everything that can happen to a paid call, at stages with a resource, with two, and with none, while the days
change in three zones.
"""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any
from zoneinfo import ZoneInfo

import pytest

from holdfast.engine import limits as telling
from holdfast.engine import reconcile_money
from holdfast.engine import resolve as resolving
from holdfast.engine.actions import act
from holdfast.engine.claim import Lease
from holdfast.engine.complete import complete
from holdfast.engine.costs import costs
from holdfast.engine.fail import fail
from holdfast.engine.finish_leases import Cost, FinishedAttempt
from holdfast.engine.forget import Forget, Restore
from holdfast.engine.memos import MemoWrite, remember
from holdfast.engine.prune import prune_items
from holdfast.engine.resolve import Decision, Resolve
from holdfast.engine.selection import Who
from holdfast.errors import UsageError
from holdfast.model.item_filter import Which
from holdfast.model.money import shares
from holdfast.model.paid_call import NO_FACTS, TOKENS, CallFacts
from holdfast.model.states import State
from holdfast.store import Store, Transaction
from holdfast.testing import ManualClock
from tests.support.effort import effort
from tests.support.limits import CENT, UNIT, Limited

pytestmark = pytest.mark.req("V13")

HOUR = 3600
ZONES = {"berlin": "Europe/Berlin", "howe": "Australia/Lord_Howe", "@p": "Pacific/Kiritimati"}
#: What each stage uses, by pipeline and stage. A payment counts for the resource that it names, else for the first one.
STAGES = {("p", "a"): ("berlin",), ("p", "b"): ("howe",), ("p", "c"): ("howe", "berlin"), ("q", "free"): ()}
KEYS = ("k0", "k1", "k2")
NAMES = ("draft", "review")
STEPS = effort(160, 1000)
#: After how many steps `db check` is asked as well.
EVERY = effort(10, 1)
ME = Who("me", "seen on the invoice")
PLENTY = 1_000_000

#: What `costs` is asked by, and what it tells.
BY = (("resource",), ("stage",), ("day",), ("resource", "day"), ("pipeline", "stage"))
TOLD = ("spent", "costs", "in_doubt", "payments", "doubts", "set_aside", *TOKENS)

#: An item at a stage: pipeline, stage, key.
Place = tuple[str, str, str]


@dataclass(eq=False)
class Call:
    place: Place
    name: str
    resource: str
    at: int
    state: str
    amount: int
    lease: int = 0
    #: In and out, and the parts of these, as far as facts have told them.
    tokens: tuple[int, ...] = (0, 0, 0, 0)
    #: All rows of a call for several items, the first one first; only that one is a payment, or a doubt.
    shares: list[Call] = field(default_factory=list)

    @property
    def whole(self) -> list[Call]:
        return self.shares or [self]

    @property
    def sums(self) -> Counter[str]:
        one = int(self.whole[0] is self)
        if self.state in ("done", "rejected"):
            tokens = dict(zip(TOKENS, self.tokens, strict=True))
            return Counter(costs=self.amount, payments=one if self.amount else 0, **tokens)
        return Counter(in_doubt=self.amount, doubts=one) if self.state == "doubtful" else Counter()

    def day(self, zone: str) -> int:
        return (
            datetime.fromtimestamp(self.at / 1e6, ZoneInfo(zone)).date().toordinal() - datetime(1970, 1, 1).toordinal()
        )


@dataclass
class Memo:
    state: str
    call: Call
    rejections: int = 0


@dataclass(eq=False)
class Running:
    lease: Lease
    place: Place
    worker: str
    #: What is still set aside for it, by resource.
    aside: dict[str, int]
    begun: set[str] = field(default_factory=set)


@dataclass
class Reference:
    """What everything should add up to."""

    clock: ManualClock
    #: Where the days of the pipeline's own limits begin.
    zone: str = ZONES["@p"]
    calls: list[Call] = field(default_factory=list)
    memos: dict[tuple[Place, str], Memo] = field(default_factory=dict)
    running: dict[int, Running] = field(default_factory=dict)

    def pay(
        self, run: Running, name: str, state: str, amount: int, resource: str | None, facts: CallFacts = NO_FACTS
    ) -> Call:
        uses = STAGES[run.place[:2]]
        counts_for = resource or (uses[0] if uses else "")
        call = Call(run.place, name, counts_for, self.clock.now(), state, amount, run.lease.id, facts.tokens)
        self.calls.append(call)
        if state == "done":
            self._use(run, call)
        return call

    def settle(self, call: Call, state: str, amount: int, facts: CallFacts = NO_FACTS) -> None:
        before = sum(call.sums[name] for name in ("costs", "in_doubt"))
        call.state, call.amount = state, amount
        if facts != NO_FACTS:
            call.tokens = facts.tokens
        if (run := self.running.get(call.lease)) is not None:
            self._use(run, call, before)

    def end(self, run: Running) -> None:
        """The attempt is over. What it had begun is in doubt; without an estimate it counts with all that was set aside."""
        rest = max(run.aside.values(), default=0)
        for call in self.calls:
            if call.lease == run.lease.id and call.state == "intended":
                call.state, call.amount = "doubtful", call.amount or rest
        del self.running[run.lease.id]

    def pass_on(self, place: Place) -> None:
        """Memos last until their stage has passed."""
        self.memos = {where: memo for where, memo in self.memos.items() if where[0] != place}

    def _use(self, run: Running, call: Call, before: int = 0) -> None:
        more = sum(call.sums[name] for name in ("costs", "in_doubt")) - before
        for resource in run.aside:
            if more > 0 and resource in (call.resource, "@p"):
                run.aside[resource] = max(0, run.aside[resource] - more)

    # What should be told --------------------------------------------------------------------------------------------

    def costs(self, by: tuple[str, ...], *, with_aside: bool) -> dict[tuple[Any, ...], dict[str, int]]:
        sums: dict[tuple[Any, ...], Counter[str]] = defaultdict(Counter)
        for call in self.calls:
            day = call.day(ZONES.get(call.resource, "UTC"))
            named = {"pipeline": call.place[0], "stage": call.place[1], "resource": call.resource or None, "day": day}
            sums[tuple(named[name] for name in by)] += call.sums
        if with_aside:
            for run in self.running.values():
                named = {"pipeline": run.place[0], "stage": run.place[1]}
                sums[tuple(named[name] for name in by)]["set_aside"] += max(run.aside.values(), default=0)
        return {group: _told(entry) for group, entry in sums.items() if any(entry.values())}

    def limit(self, resource: str) -> dict[str, int]:
        zone, sums = self.zone if resource == "@p" else ZONES[resource], Counter[str]()
        today = Call(("", "", ""), "", "", self.clock.now(), "", 0).day(zone)
        for call in self.calls:
            if resource == call.resource or (resource == "@p" and call.place[0] == "p"):
                sums += call.sums
                if call.day(zone) == today:
                    sums["spent_today"] += call.sums["costs"] + call.sums["in_doubt"]
        sums["set_aside"] = sum(run.aside.get(resource, 0) for run in self.running.values())
        told = _told(sums)
        return {name: told[name] for name in ("spent", "costs", "in_doubt", "set_aside")} | {
            "spent_today": sums["spent_today"]
        }


def _told(sums: Counter[str]) -> dict[str, int]:
    return {name: sums[name] if name != "spent" else sums["costs"] + sums["in_doubt"] for name in TOLD}


class Walk:
    """Random steps, each done in the store and in the reference."""

    def __init__(self, store: Store, clock: ManualClock, seed: int) -> None:
        self.app = Limited(store, clock)
        self.clock = clock
        self.books = Reference(clock)
        self.random = random.Random(seed)
        self.trail: list[str] = []
        #: Who has called together, for what, and with which rows.
        self.together: list[tuple[list[Running], str, list[Call]]] = []
        self.taken: Counter[str] = Counter()
        self.app.limited(None, items=0, stages={"free": []}, uses=(), name="q", max_attempts=9)
        self.app.add(KEYS)
        uses = {
            stage: {"resources": used, "max_attempts": 9}
            for (pipeline, stage), used in STAGES.items()
            if pipeline == "p"
        }
        self.app.pipeline({stage: [] for stage in uses}, only=uses)
        self._declare(ZONES["@p"])
        self.app.add(KEYS)
        # A week before the clocks change in Berlin, a fortnight before they do on Lord Howe.
        clock.advance(datetime(2027, 3, 22, tzinfo=UTC).timestamp() - clock.now() / 1e6)

    def steps(self) -> list[tuple[int, Callable[[], str | None]]]:
        return [
            (8, self.begin),
            (14, self.intend),
            (9, self.record),
            (3, self.refuse),
            (4, self.reject),
            (3, self.end),
            (3, self.fail),
            (2, self.give_up),
            (1, self.hand_back),
            (1, self.kill),
            (2, self.cancel),
            (1, self.be_late),
            (3, self.forget),
            (3, self.undo),
            (3, self.resolve_one),
            (2, self.resolve_many),
            (1, self.fold),
            (4, self.wait),
            (2, self.send_back),
            (10, self.intend_together),
            (10, self.record_together),
            (1, self.limit_anew),
            (1, self.repair),
        ]

    def step(self) -> None:
        """Do something that can be done now; now and then what was done least."""
        steps = self.steps()
        rare = sorted(steps, key=lambda one: self.taken[one[1].__name__])[:3] if self.random.random() < 0.1 else []
        while True:
            if rare:
                _, step = rare.pop(0)
            else:
                [step] = self.random.choices([step for _, step in steps], [weight for weight, _ in steps])
            if (told := step()) is not None:
                self.trail.append(told)
                self.taken[step.__name__] += 1
                return

    # Attempts -------------------------------------------------------------------------------------------------------

    def begin(self) -> str | None:
        pipeline, stage = self.random.choice(list(STAGES))
        self.app.name = pipeline
        worker, money = self.random.choice(["v", "w"]), self.random.choice([0, 3, 50]) * CENT
        leases = self.app.begin(self.random.choice([1, 3]), worker=worker, stage=stage, money=money)
        for lease in leases:
            limited = [*STAGES[pipeline, stage], "@p"] if pipeline == "p" and money else []
            place = (pipeline, stage, lease.key)
            self.books.running[lease.id] = Running(lease, place, worker, dict.fromkeys(limited, money))
        keys = [lease.key for lease in leases]
        return f"{worker} begins {keys} at {pipeline}/{stage}, {money} set aside for each" if leases else None

    def intend(self) -> str | None:
        """A call is begun; one that was in doubt is made again, perhaps because the provider knows nothing of it."""
        run, name = self._running(), self.random.choice(NAMES)
        memo = None if run is None else self.books.memos.get((run.place, name))
        if run is None or name in run.begun or (memo is not None and memo.state == "done"):
            return None
        doubt = memo is not None and memo.state == "intended"
        asked = doubt and self.random.random() < 0.5
        estimate, resource = self.random.choice([None, self._amount()]), self._resource()
        facts = self._facts()
        self.app.intend(
            run.lease,
            name,
            estimate,
            resource=resource,
            facts=facts,
            doubt="called again" if doubt else None,
            was_free=asked,
        )
        if memo is not None and asked and memo.call.state == "doubtful":
            self.books.settle(memo.call, "not_charged", 0)
        call = self.books.pay(run, name, "intended", estimate or 0, resource, facts)
        self.books.memos[run.place, name] = Memo("intended", call, 0 if memo is None else memo.rejections)
        run.begun.add(name)
        return f"{run.place} intends {name}, estimate {estimate}, resource {resource}, asked {asked}"

    def record(self) -> str | None:
        """A call returned; or the provider was asked about one in doubt, and had the answer."""
        found = self._memo("intended")
        if found is None:
            return None
        run, name, memo = found
        cost, facts = self.random.choice([0, self._amount(), self._amount()]), self._facts()
        self.app.paid(run.lease, name, cost, facts=facts)
        if memo.call.state in ("intended", "doubtful"):
            self.books.settle(memo.call, "done", cost, facts)
        memo.state = "done"
        run.begun.add(name)
        return f"{run.place} records {name} for {cost}"

    def intend_together(self) -> str | None:
        """One call is begun for several items of a stage."""
        (pipeline, stage), name = self.random.choice(list(STAGES)), self.random.choice(NAMES)
        runs = [
            run
            for run in self.books.running.values()
            if run.place[:2] == (pipeline, stage)
            and name not in run.begun
            and ((memo := self.books.memos.get((run.place, name))) is None or memo.state == "rejected")
        ]
        if len(runs) < 2:
            return None
        estimate, resource = self.random.choice([None, self._amount(), 1]), self._resource()
        amounts = [None] * len(runs) if estimate is None else shares(estimate, len(runs))
        self._remember(
            MemoWrite(run.lease, name, "intended", "1", "key of all", amount, resource=resource, lead=runs[0].lease.id)
            for run, amount in zip(runs, amounts, strict=True)
        )
        calls: list[Call] = []
        for run, amount in zip(runs, amounts, strict=True):
            calls.append(self.books.pay(run, name, "intended", amount or 0, resource))
            calls[-1].shares = calls
            memo = self.books.memos.get((run.place, name))
            self.books.memos[run.place, name] = Memo("intended", calls[-1], 0 if memo is None else memo.rejections)
            run.begun.add(name)
        self.together.append((runs, name, calls))
        return f"{[run.place for run in runs]} intend {name} together, estimate {estimate}, resource {resource}"

    def record_together(self) -> str | None:
        """Such a call returned. Some may have been taken away meanwhile: they have paid all the same."""
        for runs, name, calls in self.together:
            mine = [
                (run, call)
                for run, call in zip(runs, calls, strict=True)
                if name in run.lease.memos and run.lease.memos[name].state == "intended"
            ]
            here = [run for run, _ in mine if run.lease.id in self.books.running]
            if here and len(mine) > 1:
                break
        else:
            return None
        self.together.remove((runs, name, calls))
        cost, lead = self.random.choice([0, 2, self._amount()]), mine[0][0].lease.id
        parts, facts = shares(cost, len(mine)), self._facts().shares(len(mine))
        self._remember(
            MemoWrite(run.lease, name, "done", "1", "key of all", cost=part, value="1", facts=its, lead=lead)
            for (run, _), part, its in zip(mine, parts, facts, strict=True)
        )
        for (run, call), part, its in zip(mine, parts, facts, strict=True):
            if call.state in ("intended", "doubtful"):
                self.books.settle(call, "done", part, its)
            if run in here:
                self.books.memos[run.place, name].state = "done"
        return f"{[run.place for run, _ in mine]} record {name} together for {cost}, {len(mine) - len(here)} of them too late"

    def refuse(self) -> str | None:
        found = self._memo("intended")
        if found is None or found[1] not in found[0].begun:
            return None
        run, name, memo = found
        self.app.refused(run.lease, name)
        self.books.settle(memo.call, "not_charged", 0)
        self._drop((run.place, name), memo)
        run.begun.discard(name)
        return f"{run.place}: {name} is refused"

    def reject(self) -> str | None:
        found = self._memo("done")
        if found is None:
            return None
        run, name, memo = found
        self.app.reject(run.lease, name)
        if memo.call.state == "done":
            self.books.settle(memo.call, "rejected", memo.call.amount)
        memo.state, memo.rejections = "rejected", memo.rejections + 1
        run.begun.discard(name)
        return f"{run.place} rejects {name}"

    def end(self) -> str | None:
        return self._finish(State.DONE, lambda one: lambda tx: complete(tx, [one]), passes=True)

    def give_up(self) -> str | None:
        return self._finish(State.FAILED, lambda one: lambda tx: complete(tx, [one]))

    def fail(self) -> str | None:
        return self._finish(
            State.RETRY_LATER, lambda one: lambda tx: fail(tx, [one]), snooze=self.random.random() < 0.5
        )

    def hand_back(self) -> str | None:
        run = self._running()
        if run is None:
            return None
        self.app.release(run.lease)
        self.books.end(run)
        return f"{run.place} is handed back"

    def kill(self) -> str | None:
        worker = self.random.choice(["v", "w"])
        if all(run.worker != worker for run in self.books.running.values()):
            return None
        self.app.kill(worker)
        for run in [run for run in self.books.running.values() if run.worker == worker]:
            self.books.end(run)
        return f"{worker} is killed"

    def be_late(self) -> str | None:
        """A worker whose attempt was taken from it records nothing."""
        run = self._running()
        if run is None:
            return None
        self._cancel(run)
        write = MemoWrite(run.lease, "late", "done", "1", "key", cost=self._amount(), value="1")
        self.app.store.write(lambda tx: remember(tx, [write]))
        assert write.lost
        return f"{run.place} is cancelled, and late"

    # People ---------------------------------------------------------------------------------------------------------

    def cancel(self) -> str | None:
        run = self._running()
        if run is not None:
            self._cancel(run)
        return None if run is None else f"{run.place} is cancelled"

    def forget(self) -> str | None:
        return self._forget("done", undo=False)

    def undo(self) -> str | None:
        return self._forget("rejected", undo=True)

    def resolve_one(self) -> str | None:
        places = {run.place for run in self.books.running.values()}
        found = [
            (*at, memo) for at, memo in self.books.memos.items() if memo.state == "intended" and at[0] not in places
        ]
        if not found:
            return None
        (pipeline, stage, key), name, memo = self.random.choice(found)
        if any(at[0][::2] == (pipeline, key) and at[0][1] != stage and at[1] == name for at in self.books.memos):
            return None  # its name is needed to tell it apart, and several stages have it
        if self._is_under_way(memo.call):
            with pytest.raises(UsageError, match="may be under way"):
                self.app.store.write(lambda tx: resolving.resolve(tx, key, pipeline, name, Decision(charged=0), ME))
            return None
        decision = self.random.choice([Decision('"answer"'), Decision('"answer"', self._amount()), *self._decisions()])
        self.app.store.write(lambda tx: resolving.resolve(tx, key, pipeline, name, decision, ME))
        self._settled(memo.call, decision, one=True)
        return f"{name} of {pipeline}/{stage}/{key} is resolved: {decision}"

    def resolve_many(self) -> str | None:
        pipeline, stage = self.random.choice(list(STAGES))
        key, name = self.random.choice([None, *KEYS]), self.random.choice([None, *NAMES])
        decision = self.random.choice(self._decisions())
        found = act(self.app.store, Resolve(Which(pipeline, stage, key=key), decision.charged, name), ME)
        calls = [
            call
            for call in self.books.calls
            if call.state == "doubtful"
            and call.place[:2] == (pipeline, stage)
            and key in (None, call.place[2])
            and name in (None, call.name)
            and not self._is_under_way(call)
        ]
        whole = {id(call.whole[0]): call for call in calls}
        assert sum(found.values()) == len(whole)
        for call in whole.values():
            self._settled(call, decision)
        return f"{name} of {pipeline}/{stage}/{key} are resolved: {decision}" if calls else None

    def send_back(self) -> str:
        for self.app.name in ("p", "q"):
            self.app.retry(states=("done", "failed", "cancelled", "exhausted", "retry_later"))
        return "all is sent back"

    def limit_anew(self) -> str:
        """The pipeline's own limits are taken away, and given again, perhaps with other days."""
        zone = self.books.zone = self.random.choice(["Pacific/Kiritimati", "Pacific/Honolulu", "Asia/Kathmandu"])
        self.app.declare(p={})
        self._declare(zone)
        return f"the days of p are those of {zone}"

    def repair(self) -> str:
        """Somebody spoils the sums, and they are rebuilt."""
        table, column = self.random.choice(
            ["money amount", "money doubts", "money tokens_cached", "spent amount", "spent in_doubt"]
        ).split()
        self.app.execute(
            f"UPDATE holdfast_{table} SET {column} = {column} + 1 WHERE day % 2 = {self.random.randrange(2)}"
        )
        for day in self.app.store.read(reconcile_money.find).steps:
            self.app.store.write(lambda tx, day=day: reconcile_money.repair(tx, day, None, ME), exclusive=True)  # type: ignore[misc]
        return f"{column} of {table} is spoilt and put right"

    # Time, and the services -----------------------------------------------------------------------------------------

    def wait(self) -> str:
        self.clock.advance(self.random.choice([1, HOUR // 2, 7 * HOUR, 23 * HOUR]))
        for worker in self.app.living():
            assert self.app.beat(worker)
        return f"it is {datetime.fromtimestamp(self.clock.now() / 1e6, UTC)}"

    def fold(self) -> str:
        self.app.fold()
        return "sums are folded"

    # What is told ---------------------------------------------------------------------------------------------------

    def check(self) -> None:
        """Everything that is told is what the reference has, and the sums are those of the ledger."""
        limits, told, ledger = self.app.store.read(
            lambda tx: (telling.limits(tx), [_costs(tx, by) for by in BY], _costs(tx, ("resource", "day"), since=0))
        )
        for one in limits:
            should = self.books.limit(one["name"])
            assert {name: one[name] for name in should} == should, one["name"]
            assert one["spent"] == one["costs"] + one["in_doubt"]
        assert {one["name"] for one in limits} == {*ZONES}
        for by, sums in zip(BY, told, strict=True):
            assert sums == self.books.costs(by, with_aside=not {"resource", "day"} & {*by}), by
        assert ledger == self.books.costs(("resource", "day"), with_aside=False)

    # The parts ------------------------------------------------------------------------------------------------------

    def _declare(self, zone: str) -> None:
        limits = {name: {"zone": ZONES[name], "budget": PLENTY} for name in ("berlin", "howe")}
        self.app.declare(limits, p={"zone": zone, "budget": PLENTY})

    def _running(self) -> Running | None:
        return self.random.choice([*self.books.running.values()]) if self.books.running else None

    def _memo(self, state: str) -> tuple[Running, str, Memo] | None:
        """A memo in this state of an attempt that runs."""
        found = [
            (run, name, memo)
            for run in self.books.running.values()
            for name in NAMES
            if (memo := self.books.memos.get((run.place, name))) is not None and memo.state == state
        ]
        return self.random.choice(found) if found else None

    def _amount(self) -> int:
        return self.random.randrange(1, 3 * UNIT)

    def _facts(self) -> CallFacts:
        model = self.random.choice(["small", "large"])
        return self.random.choice([NO_FACTS, CallFacts(model, *(self.random.randrange(9) for _ in TOKENS))])

    def _resource(self) -> str | None:
        return self.random.choice([None, None, "berlin", "howe"])

    def _decisions(self) -> list[Decision]:
        return [Decision(charged=0), Decision(charged=self._amount())]

    def _finish(
        self, state: State, how: Callable[[FinishedAttempt], Any], *, passes: bool = False, snooze: bool = False
    ) -> str | None:
        """End an attempt that may have reported money of its own."""
        run = self._running()
        if run is None:
            return None
        paid = [(self._amount(), self._resource(), self._facts()) for _ in range(self.random.choice([0, 0, 1, 2]))]
        one = FinishedAttempt(
            run.lease,
            state,
            "1",
            result="null" if passes else None,
            output_hash="0" if passes else None,
            snooze=snooze,
            error=None if passes else "boom",
            costs=[Cost(*each) for each in paid],
        )
        self.app._finish(one, how(one))
        for amount, resource, facts in paid:
            self.books.pay(run, "", "done", amount, resource, facts)
        self.books.end(run)
        if passes:
            self.books.pass_on(run.place)
        return f"{run.place} ends {state}, and has paid {paid}"

    def _cancel(self, run: Running) -> None:
        self.app.name, stage, key = run.place
        self.app.cancel(stage=stage, key=key, states=["in_progress"])
        self.books.end(run)

    def _forget(self, state: str, *, undo: bool) -> str | None:
        places = [place for (place, _), memo in self.books.memos.items() if memo.state == state]
        if not places:
            return None
        (pipeline, stage, key), name = self.random.choice(places), self.random.choice([None, *NAMES])
        found = act(self.app.store, (Restore if undo else Forget)(Which(pipeline, stage, key=key), name), ME)
        busy = {run.place for run in self.books.running.values()}
        memos = [
            memo
            for (place, called), memo in self.books.memos.items()
            if place == (pipeline, stage, key)
            and place not in busy
            and name in (None, called)
            and memo.state == state
            # An answer that nobody has any more cannot be restored.
            and (not undo or memo.call.state == "rejected")
        ]
        assert sum(found.values()) == len(memos)
        for memo in memos:
            self.books.settle(memo.call, "done" if undo else "rejected", memo.call.amount)
            memo.state, memo.rejections = ("done", memo.rejections - 1) if undo else ("rejected", memo.rejections + 1)
        return f"{name} of {pipeline}/{stage}/{key}: undo {undo}" if memos else None

    def _is_under_way(self, call: Call) -> bool:
        return any(one.state == "intended" and one.lease in self.books.running for one in call.shares)

    def _settled(self, call: Call, decision: Decision, *, one: bool = False) -> None:
        """A person's word about a call holds for all that share it; an answer is that of one item."""
        unsettled = [share for share in call.whole if share.state in ("intended", "doubtful")]
        paid = sum(share.sums["costs"] for share in call.whole)
        parts = [share.amount for share in unsettled]
        if decision.charged is not None and unsettled:
            parts = shares(max(0, decision.charged - paid), len(unsettled))
        for share, part in zip(unsettled, parts, strict=True):
            self.books.settle(share, "done" if decision.value is not None or decision.charged else "not_charged", part)
        for at, memo in list(self.books.memos.items()):
            meant = [call] if one and decision.value is not None else call.whole
            if memo.call in meant and memo.state == "intended":
                if decision.value is not None:
                    memo.state = "done"
                else:
                    self._drop(at, memo)

    def _remember(self, memos: Iterable[MemoWrite]) -> None:
        written = list(memos)
        self.app.store.write(lambda tx: remember(tx, written))
        for memo in written:
            if not memo.lost:
                memo.lease.remember(memo.name, memo.kept)

    def _drop(self, at: tuple[Place, str], memo: Memo) -> None:
        """Without an answer the next attempt calls again; only what was rejected before is remembered."""
        if memo.rejections:
            memo.state = "rejected"
        else:
            del self.books.memos[at]


def _costs(tx: Transaction, by: tuple[str, ...], since: int | None = None) -> dict[tuple[Any, ...], dict[str, int]]:
    rows = costs(tx, by, pipeline=None, since=since)
    # Tokens are another matter.
    return {
        tuple(row[name] for name in by): sums
        for row in rows
        if any((sums := {name: row[name] for name in TOLD}).values())
    }


@pytest.mark.parametrize("seed", range(effort(1, 2)))
def test_spent_is_costs_and_what_is_in_doubt_after_every_step(store: Store, clock: ManualClock, seed: int):
    walk = Walk(store, clock, seed)
    for _ in range(STEPS):
        walk.step()
        try:
            walk.check()
            # Which compares the same once more, in its own way.
            if len(walk.trail) % EVERY == 0:
                assert store.read(reconcile_money.find).wrong == []
        except AssertionError as error:
            trail = "\n".join(walk.trail[-40:])
            raise AssertionError(f"seed {seed}, after {len(walk.trail)} steps:\n{trail}\n{error}") from None
    assert {step.__name__ for _, step in walk.steps()} == {*walk.taken}, "not every step was taken"
    assert len({call.day("UTC") for call in walk.books.calls}) > 3


def test_settling_a_doubt_changes_the_day_of_its_call(store: Store, clock: ManualClock):
    """The call was made before midnight in Berlin, and the person comes the day after."""
    app = Limited(store, clock)
    app.limited({"zone": "Europe/Berlin", "budget_per_day": 5}, items=2)
    clock.advance(datetime(2027, 3, 28, 21, 30, tzinfo=UTC).timestamp() - clock.now() / 1e6)  # 23:30 in summer
    for lease in app.begin(2):
        app.intend(lease, estimate=2 * UNIT)
        app.permanent(lease, "no answer")
    clock.advance(HOUR)
    day = (datetime(2027, 3, 28, tzinfo=UTC) - datetime(1970, 1, 1, tzinfo=UTC)).days
    [told] = store.read(lambda tx: costs(tx, ("resource", "day"), pipeline=None, since=None))
    assert (told["day"], told["spent"], told["costs"], told["in_doubt"]) == (day, 4 * UNIT, 0, 4 * UNIT)
    store.write(lambda tx: resolving.resolve(tx, "k0", "p", "call", Decision(charged=3 * UNIT), ME))
    assert act(store, Resolve(Which("p"), 0), ME) == {"p/work": 1}
    [told] = store.read(lambda tx: costs(tx, ("resource", "day"), pipeline=None, since=None))
    assert (told["day"], told["spent"], told["costs"], told["in_doubt"]) == (day, 3 * UNIT, 3 * UNIT, 0)
    assert (app.limit()["spent"], app.limit()["spent_today"]) == (3 * UNIT, 0)


def test_a_call_of_which_the_provider_knows_nothing_is_free(store: Store, clock: ManualClock):
    app = Limited(store, clock)
    app.limited({"budget": 5}, items=1)
    [lease] = app.begin()
    app.intend(lease, estimate=2 * UNIT)
    app.fail(lease)
    app.promote()
    assert app.limit()["in_doubt"] == 2 * UNIT
    [lease] = app.begin()
    app.intend(lease, estimate=2 * UNIT, doubt="the provider knew nothing, called again", was_free=True)
    assert (app.limit()["spent"], app.limit()["in_doubt"]) == (0, 0)
    app.paid(lease, cost=UNIT)
    assert (app.limit()["spent"], app.limit()["costs"]) == (UNIT, UNIT)


def test_a_doubt_of_an_item_that_was_pruned_can_still_be_settled(store: Store, clock: ManualClock):
    app = Limited(store, clock)
    app.limited({"budget": 5}, items=2)
    for lease in app.begin(2):
        app.intend(lease, estimate=2 * UNIT)
        app.permanent(lease, "no answer")
    clock.advance(HOUR)
    pipeline = app.stage("work").pipeline
    assert store.write(lambda tx: prune_items(tx, pipeline, tx.now)) == 2
    assert app.limit()["in_doubt"] == 4 * UNIT
    assert act(store, Resolve(Which("p", key="k0"), 0), ME) == {}, "it has no key any more"
    assert act(store, Resolve(Which("p"), 0), ME) == {"p/work": 2}
    assert (app.limit()["spent"], app.limit()["in_doubt"]) == (0, 0)
    assert [event["item"] for event in app.told("resolved")] == [None, None]
    assert app.query("SELECT COUNT(*) FROM holdfast_events WHERE item IS NOT NULL") == [(0,)], (
        "nothing is left of the items"
    )


def test_a_doubt_is_settled_where_it_was_counted_though_the_zone_is_another_now(store: Store, clock: ManualClock):
    app = Limited(store, clock)
    app.limited({"zone": "UTC", "budget_per_day": 5}, items=1)
    clock.advance(datetime(2027, 3, 22, 20, tzinfo=UTC).timestamp() - clock.now() / 1e6)
    [lease] = app.begin()
    app.intend(lease, estimate=2 * UNIT)
    app.permanent(lease, "no answer")
    app.declare({"api": {"zone": "Australia/Lord_Howe", "budget_per_day": 5}})
    assert act(store, Resolve(Which("p"), 3 * UNIT), ME) == {"p/work": 1}
    assert app.query("SELECT amount, in_doubt FROM holdfast_spent") == [(3 * UNIT, 0)]
    assert (app.limit()["spent"], app.limit()["spent_today"]) == (3 * UNIT, 0), "it is tomorrow on Lord Howe"


def test_a_rejected_answer_goes_with_its_item_and_its_price_stays(store: Store, clock: ManualClock):
    app = Limited(store, clock)
    app.limited({"budget": 5}, items=1)
    [lease] = app.begin()
    app.intend(lease, estimate=2 * UNIT)
    app.paid(lease, cost=2 * UNIT)
    app.reject(lease)
    app.permanent(lease, "no good")
    assert app.query("SELECT state, value, reason FROM holdfast_calls") == [("rejected", "null", "no good")]
    clock.advance(HOUR)
    pipeline = app.stage("work").pipeline
    assert store.write(lambda tx: prune_items(tx, pipeline, tx.now)) == 1
    assert app.query("SELECT state, value, reason FROM holdfast_calls") == [("rejected", None, None)]
    assert (app.limit()["spent"], app.limit()["costs"]) == (2 * UNIT, 2 * UNIT)
