"""The engine against a reference without a database: any order of any operations, by any worker, however late.

Hypothesis chooses what happens; after each step the tables must be those of the reference, row by row. A failing
example is printed with a line (`@reproduce_failure`) that runs it again.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from itertools import cycle
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from holdfast.clock import SECOND
from holdfast.engine import actions, reap, retry_and_cancel, selection, workers
from holdfast.engine.add import add_items, read_items
from holdfast.engine.backfill import backfill
from holdfast.engine.check import check
from holdfast.engine.claim import Lease, claim, claim_at_once
from holdfast.engine.complete import complete, must_be_alone
from holdfast.engine.costs import costs
from holdfast.engine.due_retries import promote
from holdfast.engine.fail import fail
from holdfast.engine.finish_leases import Cost, FinishedAttempt
from holdfast.engine.fold_counts import fold
from holdfast.engine.hand_back import release
from holdfast.engine.layout import layout
from holdfast.engine.memos import MemoWrite, remember
from holdfast.engine.register import register
from holdfast.engine.workers import Identity
from holdfast.model import codec
from holdfast.model.stage import PipelineSpec, StageSpec
from holdfast.model.states import State
from holdfast.store import AtOnce, Store, Transaction
from holdfast.store.store import new_identity
from holdfast.testing import ManualClock
from tests.support.effort import effort
from tests.support.reference import OPEN, PaidCall, Reference, Verdict, history_allows
from tests.support.steps import Trouble, ask, quick_store, wipe, write

#: Examples and steps per database; enough that each of tests/mutants is found, and half a minute long.
EXAMPLES = {"sqlite": effort(20, 500), "postgres": effort(8, 500)}
STEPS = 50
LEASE_US = 30 * SECOND
LABELS = ("ann", "bob", "cyd", "dan")
SHAPES: tuple[dict[str, tuple[str, ...]], ...] = (
    {"a": ()},
    {"a": (), "b": ("a",), "c": ("b",)},
    {"a": (), "b": ("a",), "c": ("a",), "d": ("b", "c")},
    {"a": (), "z": (), "m": ("a", "z")},
    {"z": (), "a": ("z",), "m": ("a", "z")},
    {"a": (), "c": ("a",), "b": ("a", "c"), "d": ("b",), "e": ("c",)},
)

#: Every table, as: its name, key, stage, four numbers, a state and a result.
_JOIN = "x JOIN holdfast_items i ON i.id = x.item JOIN holdfast_stages s ON s.id = x.stage"
_NO = "CAST(NULL AS TEXT)"
TABLES_IN_ONE_LOOK = {
    "waiting": "SELECT 'waiting', i.key, s.name, x.attempts, x.alone, x.rerun, 0, 0, "
    f"{_NO}, {_NO} FROM holdfast_waiting {_JOIN}",
    "delayed": "SELECT 'delayed', i.key, s.name, x.attempts, x.alone, x.rerun, 0, 0, "
    f"{_NO}, {_NO} FROM holdfast_delayed {_JOIN}",
    "leases": "SELECT 'leases', i.key, s.name, x.attempt, x.alone, x.rerun, x.id, x.worker, "
    f"{_NO}, {_NO} FROM holdfast_leases {_JOIN}",
    "outcomes": "SELECT 'outcomes', i.key, s.name, x.attempts, 0, 0, x.lease, 0, x.state, x.result "
    f"FROM holdfast_outcomes {_JOIN}",
    "view": f"SELECT 'view', x.key, s.name, x.attempts, 0, 0, 0, 0, x.state, {_NO} FROM holdfast_item_stages {_JOIN}",
    "status": f"SELECT 'status', key, {_NO}, 0, 0, 0, 0, 0, status, {_NO} FROM holdfast_item_status",
    "workers": f"SELECT 'workers', CAST(id AS TEXT), {_NO}, 0, 0, 0, alive_until, 0, {_NO}, {_NO} FROM holdfast_workers",
}

labels = st.sampled_from(LABELS)
picks = st.integers(0, 1_000)
few = st.integers(1, 3)
waits = st.sampled_from([0, 1 * SECOND, 40 * SECOND])
amounts = st.integers(1, 9)
reported = st.sampled_from([0, 0, 3])
#: What becomes of a paid call while its attempt goes on, if anything does.
fates = st.sampled_from([[], ["done"], ["free"], ["done", "rejected"]])
verdicts = st.one_of(
    st.builds(Verdict, st.just("done"), st.sampled_from(["old", "new"]), paid=reported),
    st.just(Verdict("skipped")),
    st.builds(Verdict, st.just("failed"), paid=reported),
    st.builds(Verdict, st.just("raised"), delay_us=waits, company=st.sampled_from([1, 1, 3]), paid=reported),
    st.builds(Verdict, st.just("snoozed"), delay_us=waits, paid=reported),
    st.just(Verdict("released")),
)
troubles = st.one_of(st.none(), st.none(), st.builds(Trouble, st.sampled_from(Trouble.KINDS), st.integers(1, 6)))
finished_states = st.sets(
    st.sampled_from(["done", "skipped", "failed", "exhausted", "cancelled", "retry_later"]), min_size=1
)
open_states = st.sets(st.sampled_from(OPEN), min_size=1)


class EngineMachine(RuleBasedStateMachine):
    """Four workers, some of whom are dead without knowing it."""

    store: Store
    clock: ManualClock
    shape: dict[str, tuple[str, ...]]

    @initialize(shape=st.sampled_from(SHAPES[::-1]), max_attempts=few, keys=few)
    def begin(self, shape: dict[str, tuple[str, ...]], max_attempts: int, keys: int) -> None:
        wipe(self.store)
        self.model = Reference(self.clock.elapsed())
        self.max_attempts = max_attempts
        self.who: dict[str, Identity] = {}
        #: Everyone who ever was, by number: the dead speak too.
        self.everyone: list[Identity] = []
        #: Every lease ever granted, with the number of its worker.
        self.granted: list[tuple[Lease, int]] = []
        #: Every paid call ever begun, with its name and the lease that it was begun under.
        self.called: list[tuple[PaidCall, str, Lease]] = []
        self.newest_token = 0
        self.events_read = 0
        self.added = 0
        self._register(shape)
        self._add(keys, 0)
        # As a worker does when it starts; from here on the engine knows how the clocks stand to each other.
        self.store.write(promote)

    # Items and pipelines ------------------------------------------------------------------------------------

    @rule(many=few, priority=st.sampled_from([0, 0, -1, 7]))
    def add(self, many: int, priority: int) -> None:
        if len(self.model.items) < 8:
            self._add(many, priority)

    @rule()
    def add_again(self) -> None:
        """Known items are not born twice."""
        added = self.store.write(lambda tx: add_items(tx, "p", read_items(list(self.model.items))))
        assert added == (0, 0, len(self.model.items))

    @rule(shape=st.sampled_from(SHAPES))
    def deploy(self, shape: dict[str, tuple[str, ...]]) -> None:
        """Another version of the pipeline: stages come, go, and change places."""
        self._register(shape)

    @rule(name=st.sampled_from("xy"), pick=picks)
    def add_stage(self, name: str, pick: int) -> None:
        if name not in self.shape:
            self._register({**self.shape, name: (sorted(self.shape)[pick % len(self.shape)],)})

    @precondition(lambda self: any(stage.backlog for stage in self.model.stages.values()))
    @rule(most=few, steps=few)
    def backfill(self, most: int, steps: int) -> None:
        for _ in range(steps):
            before = self._places("SELECT i.key, s.name FROM holdfast_waiting x {join}")
            looked_at = self.store.write(lambda tx: backfill(tx, most))
            self.model.backfilled(self._places("SELECT i.key, s.name FROM holdfast_waiting x {join}") - before)
            if not looked_at:
                self.model.backfill_is_over()
                return

    # Workers ------------------------------------------------------------------------------------------------

    @rule(label=labels, pick=picks, most=few)
    def claim(self, label: str, pick: int, most: int) -> None:
        self._cycle(label, [], claims=[(self._busy_stage(pick), most)])

    @rule(pick=picks, verdict=verdicts, onward=st.booleans(), trouble=troubles)
    @precondition(lambda self: self.model.leases)
    def finish(self, pick: int, verdict: Verdict, onward: bool, trouble: Trouble | None) -> None:
        """A worker says how an attempt ended whose lease stands."""
        self._say(self._standing()[pick % len(self.model.leases)], verdict, onward, trouble)

    @rule(pick=picks, verdict=verdicts, onward=st.booleans())
    @precondition(lambda self: self.granted)
    def finish_late(self, pick: int, verdict: Verdict, onward: bool) -> None:
        """Anybody says anything about any lease there ever was: said twice, said by the dead, said of a lost one."""
        self._say(self.granted[-1 - pick % min(len(self.granted), 12)], verdict, onward)

    @rule(
        label=labels,
        said=st.lists(st.tuples(picks, verdicts), max_size=3),
        pick=picks,
        most=few,
        onward=st.booleans(),
        trouble=troubles,
    )
    def cycle(
        self, label: str, said: list[tuple[int, Verdict]], pick: int, most: int, onward: bool, trouble: Trouble | None
    ) -> None:
        """What a worker does in one transaction: several verdicts, then a claim."""
        who = self._present(label)
        own = [lease for lease, worker in self.granted if worker == who.id][-8:]
        chosen = {own[pick % len(own)].id: (own[pick % len(own)], verdict) for pick, verdict in said if own}
        claims = [(self._stage_name(pick), most), (self._busy_stage(pick), most)]
        self._cycle(label, list(chosen.values()), claims=claims, onward=onward, trouble=trouble)

    @rule(label=labels, most=few, said=st.lists(verdicts, min_size=1, max_size=4), onward=st.booleans(), pays=fates)
    def serve(self, label: str, most: int, said: list[Verdict], onward: bool, pays: list[str]) -> None:
        """A worker at work: claims at each stage in turn, pays for one call each, and finishes what it got, mostly well."""
        who = self._present(label)
        verdicts_in_turn = cycle(said)
        for stage in [*self.shape, *self.shape]:
            mine = {id(lease) for lease, _ in self.granted}
            if not self.model.next_in_line(stage, 1):
                continue
            self._cycle(label, [], claims=[(stage, most)])
            while new := [lease for lease, worker in self.granted if worker == who.id and id(lease) not in mine]:
                mine.update(id(lease) for lease in new)
                self._pay(new[-1], 5, pays, None)
                self._settle(who.id, list(zip(new, verdicts_in_turn, strict=False)), [], onward, None)

    @rule(pick=picks, key=picks, values=st.lists(st.sampled_from(["old", "new"]), min_size=1, max_size=3), label=labels)
    def run_again(self, pick: int, key: int, values: list[str], label: str) -> None:
        """A person sends back what is done, and a worker comes to the same result or to another one."""
        self._choose(retry_and_cancel.RetryStages, self.model.retry, {"done", "skipped"}, pick, key)
        self.serve(label=label, most=3, said=[Verdict("done", value) for value in values], onward=True, pays=["done"])

    @rule(pick=picks)
    @precondition(lambda self: self.everyone)
    def beat(self, pick: int) -> None:
        """A heartbeat of whoever ever lived: the dead stay dead."""
        self._beat(self.everyone[pick % len(self.everyone)])

    # Money --------------------------------------------------------------------------------------------------

    @rule(pick=picks, amount=amounts, becomes=fates, late=st.booleans(), trouble=troubles)
    @precondition(lambda self: self.granted)
    def pay(self, pick: int, amount: int, becomes: list[str], late: bool, trouble: Trouble | None) -> None:
        """Somebody pays, under a lease that stands or any that ever stood."""
        chosen = self.granted[-12:] if late else self._standing()
        if chosen:
            self._pay(chosen[pick % len(chosen)][0], amount, becomes, trouble)

    @rule(pick=picks, becomes=st.sampled_from(["done", "free"]), cost=amounts, trouble=troubles)
    @precondition(lambda self: any(call.state == "intended" for call, *_ in self.called))
    def hear_late(self, pick: int, becomes: str, cost: int, trouble: Trouble | None) -> None:
        """A call returned, or was refused; its attempt may be over by now."""
        unheard = [one for one in self.called if one[0].state == "intended"]
        self._record(unheard[-1 - pick % min(len(unheard), 4)], becomes, cost, trouble)

    def _pay(self, lease: Lease, amount: int, becomes: list[str], trouble: Trouble | None) -> None:
        name = f"call {len(self.called)}"
        stood = self._remember(MemoWrite(lease, name, "intended", "1", f"key of {name}", estimate=amount), trouble)
        call = self.model.intends(lease.id, (lease.key, self.name[lease.stage]), amount)
        assert stood == (call is not None)
        if call is None:
            return
        self.called.append((call, name, lease))
        for state in becomes:
            self._record(self.called[-1], state, amount + 1, trouble)

    def _record(self, called: tuple[PaidCall, str, Lease], becomes: str, cost: int, trouble: Trouble | None) -> None:
        call, name, lease = called
        facts: dict[str, dict[str, Any]] = {
            "done": {"cost": cost, "value": "1"},
            "free": {"reason": "429"},
            "rejected": {"value": "1", "reason": "no good"},
        }
        stood = self._remember(MemoWrite(lease, name, becomes, "1", f"key of {name}", **facts[becomes]), trouble)
        assert stood == self.model.recorded(call, becomes, cost)

    def _remember(self, memo: MemoWrite, trouble: Trouble | None) -> bool:
        write(self.store, lambda tx: remember(tx, [memo]), trouble=trouble)
        if not memo.lost:
            memo.lease.remember(memo.name, memo.kept)
        return not memo.lost

    @rule(label=labels)
    def crash(self, label: str) -> None:
        """The worker forgets everything and beats no more. Its row and its leases do not know yet."""
        self.who.pop(label, None)

    @rule(label=labels, pick=picks, most=few, others=st.booleans())
    def die_at_work(self, label: str, pick: int, most: int, others: bool) -> None:
        """Claims, and is silent for a lease. Its work goes to others."""
        self._cycle(label, [], claims=[(self._busy_stage(pick), most)])
        self.wait(seconds=29)
        if others:
            for other, who in self.who.items():
                if other != label:
                    self._beat(who)
        self.wait(seconds=1)
        self.remove_silent()
        self.reap(most=100, trouble=None)

    @rule(label=labels)
    def leave(self, label: str) -> None:
        if label in self.who:
            who = self.who.pop(label)
            self.store.write(lambda tx: workers.leave(tx, who, {}))
            self.model.leave(who.id)

    # Services -----------------------------------------------------------------------------------------------

    @rule()
    def remove_silent(self) -> None:
        dead = self.store.write(lambda tx: reap.remove_silent(tx, self.clock.name))
        assert {worker for worker, _ in dead} == self.model.remove_silent()

    @rule(pick=picks)
    @precondition(lambda self: self.everyone)
    def remove_ended(self, pick: int) -> None:
        """A neighbour sees that a process is gone."""
        gone = self.everyone[pick % len(self.everyone)]
        self.store.write(lambda tx: reap.remove_ended(tx, "host", 0, lambda process: process != gone.process))
        self.model.leave(gone.id)

    @rule(most=st.sampled_from([1, 2, 100]), trouble=troubles)
    def reap(self, most: int, trouble: Trouble | None) -> None:
        assert write(self.store, lambda tx: reap.reap(tx, most), trouble=trouble) == self.model.reap(most)

    @rule(most=st.sampled_from([1, 2, 100]), trouble=troubles)
    @precondition(lambda self: self.model.delayed)
    def promote(self, most: int, trouble: Trouble | None) -> None:
        before = self._places("SELECT i.key, s.name FROM holdfast_delayed x {join}")
        write(self.store, lambda tx: promote(tx, most), trouble=trouble)
        left = self._places("SELECT i.key, s.name FROM holdfast_delayed x {join}")
        self.model.promoted(before - left, most)
        due = "SELECT i.key, s.name, x.due_at FROM holdfast_delayed " + _JOIN
        assert {
            (key, stage): due_at - self.clock.now() for key, stage, due_at in self.store.read(lambda tx: ask(tx, due))
        } == {place: row.due_at - self.model.now for place, row in self.model.delayed.items()}

    @rule(most=st.sampled_from([2, 500]), trouble=troubles)
    def fold(self, most: int, trouble: Trouble | None) -> None:
        write(self.store, lambda tx: fold(tx, most), trouble=trouble)

    # Time ---------------------------------------------------------------------------------------------------

    @rule(seconds=st.sampled_from([1, 10, 29, 30, 45]))
    def wait(self, seconds: int) -> None:
        self.clock.advance(seconds)
        self.model.now = self.clock.elapsed()

    @rule(seconds=st.sampled_from([-3600, -20, 20, 3600]))
    def set_the_time(self, seconds: int) -> None:
        """Somebody sets the time of day; no lease ends and no retry comes sooner or later."""
        self.clock.set_wall(seconds)

    # What a person does -------------------------------------------------------------------------------------

    @rule(states=finished_states, stage=st.one_of(st.none(), picks), key=st.one_of(st.none(), picks))
    def retry(self, states: set[str], stage: int | None, key: int | None) -> None:
        self._choose(retry_and_cancel.RetryStages, self.model.retry, states, stage, key)

    @rule(states=open_states, stage=st.one_of(st.none(), picks), key=picks)
    def cancel(self, states: set[str], stage: int | None, key: int) -> None:
        self._choose(retry_and_cancel.CancelStages, self.model.cancel, states, stage, key)

    # What always holds --------------------------------------------------------------------------------------

    @invariant()
    def tables_are_those_of_the_reference(self) -> None:
        self.store.read(self._compare)
        assert check(self.store) == []

    @invariant()
    def nobody_is_forgotten(self) -> None:
        """V1: whatever could begin has begun, or is in a backlog."""
        assert list(self.model.owed()) == []

    @invariant()
    def attempts_stay_within_the_limit(self) -> None:
        """V6: no claim grants more than the stage allows."""
        assert list(self.model.overspent()) == []

    def _compare(self, tx: Transaction) -> None:
        model = self.model
        there: dict[str, dict[Any, Any]] = {name: {} for name in TABLES_IN_ONE_LOOK}
        for table, key, stage, *row in ask(tx, " UNION ALL ".join(TABLES_IN_ONE_LOOK.values())):
            place = (key, stage) if stage is not None else key
            assert place not in there[table], f"{place} has two rows in {table}: {there[table][place]} and {row}"
            there[table][place] = tuple(row)
        places = {place: (row.attempts, row.alone, row.rerun) for place, row in model.waiting.items()}
        assert {place: row[:3] for place, row in there["waiting"].items()} == places
        places = {place: (row.attempts, row.alone, row.rerun) for place, row in model.delayed.items()}
        assert {place: row[:3] for place, row in there["delayed"].items()} == places
        assert {place: row[:5] for place, row in there["leases"].items()} == {
            lease.place: (lease.attempt, lease.alone, lease.rerun, token, lease.worker)
            for token, lease in model.leases.items()
        }
        assert {
            place: (state, n, token, said) for place, (n, _, _, token, _, state, said) in there["outcomes"].items()
        } == {
            place: (row.state, row.attempts, row.token, None if row.value is None else codec.encode(row.value))
            for place, row in model.outcomes.items()
        }
        assert {place: (row[5], row[0]) for place, row in there["view"].items()} == model.states()
        assert {int(worker): row[3] for worker, row in there["workers"].items()} == model.alive_until
        backlog = any(stage.backlog for stage in model.stages.values())
        for key, row in there["status"].items():
            expected = model.status(key)
            assert row[5] == expected or (backlog and (expected, row[5]) == ("done", "pending"))
        self._compare_events(tx)
        told = costs(tx, ("stage",), pipeline=None, since=None)
        assert {
            one["stage"]: (one["costs"], one["payments"], one["in_doubt"], one["doubts"]) for one in told
        } == model.money()
        assert all((one["spent"], one["set_aside"]) == (one["costs"] + one["in_doubt"], 0) for one in told)

    def _compare_events(self, tx: Transaction) -> None:
        told = ask(
            tx,
            "SELECT e.id, e.event, i.key, s.name FROM holdfast_events e JOIN holdfast_items i ON i.id = e.item "
            "JOIN holdfast_stages s ON s.id = e.stage WHERE e.id > :after "
            # These tell of money, and lead nowhere.
            "AND e.event NOT IN ('in_doubt', 'money_in_doubt', 'answer_rejected') ORDER BY e.id",
            after=self.events_read,
        )
        if told:
            self.events_read = told[-1][0]
        new = self.model.events[self.events_compared :]
        self.events_compared += len(new)
        assert _sequences(row[1:] for row in told) == _sequences(new)
        if not new:
            return
        states = self.model.states()
        for place, events in _sequences(self.model.events).items():
            state, _ = states.get(place, (None, 0))
            assert history_allows(events, state), f"{place}: {events} do not lead to {state}"

    # The parts ----------------------------------------------------------------------------------------------

    events_compared = 0

    def _register(self, shape: dict[str, tuple[str, ...]]) -> None:
        stages = [StageSpec(name, _handler, after, max_attempts=self.max_attempts) for name, after in shape.items()]
        spec = PipelineSpec.build("p", stages)
        self.store.write(lambda tx: register(tx, spec), exclusive=True)
        self.shape = shape
        self.model.register({stage.name: stage.after for stage in spec.stages}, self.max_attempts)
        known = self.store.read(layout)
        self.number = {row.name: row.id for row in known.stages.values()}
        self.name = {row.id: row.name for row in known.stages.values()}

    def _add(self, many: int, priority: int) -> None:
        keys = [f"k{self.added + n}" for n in range(many)]
        self.added += many
        assert self.store.write(lambda tx: add_items(tx, "p", read_items(keys), priority=priority)).new == many
        numbers = dict(self.store.read(lambda tx: ask(tx, "SELECT key, id FROM holdfast_items")))
        for key in keys:
            self.model.add(key, numbers[key], priority)

    def _present(self, label: str) -> Identity:
        if label not in self.who:
            number = new_identity()
            who = self.who[label] = Identity(number, label, "host", f"process {number}", LEASE_US)
            self.everyone.append(who)
            self.store.write(lambda tx: workers.join(tx, who, {}, {}))
            self.model.join(who.id, LEASE_US)
        return self.who[label]

    def _beat(self, who: Identity) -> None:
        assert self.store.write(lambda tx: workers.beat(tx, who, {})) == self.model.beat(who.id, LEASE_US)

    def _standing(self) -> list[tuple[Lease, int]]:
        tokens = {(token, lease.stage) for token, lease in self.model.leases.items()}
        return [one for one in self.granted if (one[0].id, self.name[one[0].stage]) in tokens]

    def _say(self, one: tuple[Lease, int], verdict: Verdict, onward: bool, trouble: Trouble | None = None) -> None:
        lease, worker = one
        self._settle(worker, [(lease, verdict)], [], onward, trouble)

    def _cycle(
        self,
        label: str,
        said: list[tuple[Lease, Verdict]],
        *,
        claims: list[tuple[str, int]],
        onward: bool = False,
        trouble: Trouble | None = None,
    ) -> None:
        self._settle(self._present(label).id, said, claims, onward, trouble)

    def _settle(
        self,
        worker: int,
        said: list[tuple[Lease, Verdict]],
        claims: list[tuple[str, int]],
        onward: bool,
        trouble: Trouble | None,
    ) -> None:
        """One transaction, in the engine and in the reference; then see that both granted the same."""
        ended = [_finished(lease, verdict) for lease, verdict in said if verdict.kind in ("done", "skipped", "failed")]
        again = [_finished(lease, verdict) for lease, verdict in said if verdict.kind in ("raised", "snoozed")]
        back = [lease for lease, verdict in said if verdict.kind == "released"]

        def work(tx: Transaction) -> tuple[list[Lease], list[list[Lease]]]:
            moved = complete(tx, ended, set(self.number.values()) if onward else ())
            fail(tx, again)
            release(tx, back, "test")
            return moved, [claim(tx, worker, self.number[stage], most) for stage, most in claims]

        at_once = self._at_once(worker, *claims[0]) if len(claims) == 1 and not said else None
        moved, taken = write(
            self.store, work, slot=worker, trouble=trouble, exclusive=must_be_alone(ended), at_once=at_once
        )
        moved_to = {lease.id: self.name[lease.stage] for lease in moved}
        for kinds in (("done", "skipped", "failed"), ("raised", "snoozed"), ("released",)):
            same = [one for one in said if one[1].kind in kinds]
            for lease, verdict in sorted(same, key=lambda one: (one[0].stage, one[0].id)):
                stage = self.name[lease.stage]
                self.model.says(lease.id, lease.key, stage, verdict, moved_to.pop(lease.id, None))
        assert moved_to == {}
        self.granted += [(lease, worker) for lease in moved]
        for (stage, most), leases in zip(claims, taken, strict=True):
            assert [lease.key for lease in leases] == self.model.next_in_line(stage, most)
            for lease in leases:
                assert lease.id > self.newest_token, f"token {lease.id} after {self.newest_token}"
                self.newest_token = lease.id
                expected = self.model.grant(lease.id, worker, lease.key, stage)
                assert (lease.attempt, lease.alone, lease.rerun) == (expected.attempt, expected.alone, expected.rerun)
                self.granted.append((lease, worker))

    def _at_once(self, worker: int, stage: str, most: int) -> AtOnce[tuple[list[Lease], list[list[Lease]]]] | None:
        """The claim of a worker that has just woken up."""
        known, number = self.store.cache.get("layout"), self.number[stage]
        if known is None or known.parents(number):
            return None
        held = {lease.id for lease, _ in self.granted}
        return claim_at_once(
            known, worker, number, most, held.__contains__, self.store.read, lambda leases, _: ([], [leases])
        )

    def _choose(
        self,
        kind: Callable[[selection.Which], actions.ActionKind],
        expected: Callable[..., dict[str, int]],
        states: set[str],
        stage: int | None,
        key: int | None,
    ) -> None:
        name = None if stage is None else self._stage_name(stage)
        chosen = None if key is None else sorted(self.model.items)[key % len(self.model.items)]
        which = selection.Which("p", name, frozenset(map(State, states)), chosen)
        seen = actions.count(self.store, kind(which))
        done = actions.act(self.store, kind(which), selection.Who("test"))
        said = expected(states, name, chosen)
        assert {str(state): n for state, n in done.items() if n} == said
        assert {str(state): n for state, n in seen.items() if n} == said

    def _busy_stage(self, pick: int) -> str:
        """A stage where something waits, if there is one."""
        names = sorted({stage for _, stage in self.model.waiting}) or sorted(self.shape)
        return names[pick % len(names)]

    def _stage_name(self, pick: int) -> str:
        names = sorted(self.number)
        return names[pick % len(names)]

    def _places(self, text: str) -> set[tuple[str, str]]:
        join = "JOIN holdfast_items i ON i.id = x.item JOIN holdfast_stages s ON s.id = x.stage"
        return {(key, stage) for key, stage in self.store.read(lambda tx: ask(tx, text.format(join=join)))}


def _handler(item: object, ctx: object) -> None:
    """Never called."""


def _finished(lease: Lease, verdict: Verdict) -> FinishedAttempt:
    kind = verdict.kind
    if kind == "done":
        value = codec.encode(verdict.value)
        return FinishedAttempt(
            lease,
            State.DONE,
            "1",
            result=value,
            output_hash=codec.digest(verdict.value),
            took_us=7,
            costs=_paid(verdict),
        )
    if kind == "skipped":
        return FinishedAttempt(lease, State.SKIPPED, "1", output_hash=codec.digest(None))
    if kind == "failed":
        return FinishedAttempt(lease, State.FAILED, "1", error="never", traceback="Traceback", costs=_paid(verdict))
    if kind == "snoozed":
        return FinishedAttempt(
            lease, State.RETRY_LATER, "1", delay_us=verdict.delay_us, snooze=True, costs=_paid(verdict)
        )
    return FinishedAttempt(
        lease,
        State.RETRY_LATER,
        "1",
        error="boom",
        traceback="Traceback",
        delay_us=verdict.delay_us,
        company=verdict.company,
        costs=_paid(verdict),
    )


def _paid(verdict: Verdict) -> list[Cost]:
    return [Cost(verdict.paid, None)] if verdict.paid else []


def _sequences(events: Iterable[tuple[Any, ...]]) -> dict[tuple[str, str], list[str]]:
    found: dict[tuple[str, str], list[str]] = {}
    for event, key, stage in events:
        found.setdefault((key, stage), []).append(event)
    return found


@pytest.mark.req("V1", "V3", "V6", "V9")
@pytest.mark.fault(6, 7, 8, 20, 52)
def test_any_order_of_operations_leaves_the_tables_of_the_reference(database, request):
    clock = ManualClock()
    with quick_store(database, request, clock) as store:

        class Machine(EngineMachine):
            pass

        Machine.store, Machine.clock = store, clock
        run_state_machine_as_test(
            Machine,
            settings=settings(
                max_examples=int(os.environ.get("HOLDFAST_EXAMPLES", EXAMPLES[database])),
                stateful_step_count=STEPS,
                deadline=None,
                derandomize=False,
                print_blob=True,
                report_multiple_bugs=False,
                suppress_health_check=list(HealthCheck),
                # To know that there is a failure is enough where one is expected.
                phases=[phase for phase in Phase if phase is not Phase.shrink or "HOLDFAST_MUTANT" not in os.environ],
            ),
        )
