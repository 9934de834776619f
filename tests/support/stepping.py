"""Several workers on one real database, stepped by a seed: who goes next, who dies, who is told nothing, who stalls.

An actor is a worker without processes or threads of handlers: it joins, beats, settles and claims in one transaction,
runs a make-believe handler, and sweeps now and then, through the same engine operations as the real one. It can be
stopped before every statement and around every commit. What its handlers do is written in a ledger, a list that no
database knows; the ledger judges the tables at the end.

On SQLite one writer shuts out all others, so actors take turns between transactions, and faults strike within. On
PostgreSQL each actor has a thread and a connection, and they interleave statement by statement; one that waits for a
lock is known from pg_locks, and the others go on.
"""

from __future__ import annotations

import queue
import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, TypeVar

import psycopg

from holdfast import points
from holdfast.clock import SECOND
from holdfast.engine import actions, reap, retry_and_cancel, selection, status, workers
from holdfast.engine.add import add_items, read_items
from holdfast.engine.backfill import backfill
from holdfast.engine.check import check
from holdfast.engine.claim import Lease, claim
from holdfast.engine.complete import complete, must_be_alone
from holdfast.engine.due_retries import promote
from holdfast.engine.fail import fail
from holdfast.engine.finish_leases import FinishedAttempt
from holdfast.engine.fold_counts import fold
from holdfast.engine.hand_back import release
from holdfast.engine.layout import layout
from holdfast.engine.register import register
from holdfast.engine.workers import Identity
from holdfast.errors import StoreConflict, StoreUnavailable
from holdfast.model import codec
from holdfast.model.stage import PipelineSpec, StageSpec
from holdfast.model.states import State
from holdfast.store import Store, Transaction
from holdfast.store.store import new_identity
from holdfast.testing import ManualClock
from tests.support.steps import ask, wipe

T = TypeVar("T")

LEASE_SECONDS = 30
MAX_ATTEMPTS = 4
SHAPE: dict[str, tuple[str, ...]] = {"a": (), "b": ("a",), "c": ("a",), "d": ("b", "c")}
#: What a person adds to the pipeline in some of the stories.
LATER: dict[str, tuple[str, ...]] = {**SHAPE, "e": ("c",)}
PASSED = ("done", "skipped")

#: Every kind of fault; a run in which one of them never fired has proven nothing about it.
FAULTS = ("crash in transaction", "crash before commit", "crash after commit", "lost reply", "cut", "conflict", "stall")
#: Points at which actors act before faults stop striking, and after which a story that has no end is a failure.
TROUBLED_STEPS = 250
MOST_STEPS = 6000
#: A thread that neither parks nor waits for a lock for so long is stuck.
STUCK_SECONDS = 20.0


class Crash(BaseException):
    """The process of an actor is gone, from one instruction to the next."""


class _Stop(BaseException):
    """The story is over."""


@dataclass(frozen=True)
class Line:
    """What is known outside of the database: `claimed` and `accepted` after the commit was acknowledged, `ran` before."""

    what: str
    key: str
    stage: str
    token: int
    attempt: int
    value: Any = None
    seen: Any = None


class Actor:
    """One worker, or rather one after another under the same label: it is started again after each crash."""

    def __init__(self, story: Story, label: str, store: Store, seed: str) -> None:
        self.story = story
        self.label = label
        self.store = store
        self.rng = random.Random(seed)
        self.go = threading.Semaphore(0)
        self.order: str | None = None
        #: The number of its connection's process on PostgreSQL.
        self.backend: int | None = None
        self.hand: list[Lease] = []
        self.said: list[tuple[FinishedAttempt, Any]] = []

    def life(self) -> Iterator[None]:
        """Each step is a transaction or a piece of work between two."""
        while True:
            self.hand, self.said = [], []
            try:
                yield from self._shift()
            except Crash:
                if self.story.threaded:
                    # The next process has a connection of its own.
                    self.store = self.store.another()
                    self.connect()
                yield

    def connect(self) -> None:
        self.backend = self.store.connect().connection.info.backend_pid

    def _shift(self) -> Iterator[None]:
        yield from self._join()
        while True:
            if self.rng.random() < 0.8:
                alive = self.write(lambda tx: workers.beat(tx, self.who, {}))
                yield
                if alive and self.robbed and not self.story.person:
                    raise AssertionError(f"{self.label} lives, and yet {self.robbed} was taken from it")
                if not alive:
                    # What it holds it still speaks of, too late.
                    yield from self._join()
            yield from self._settle_and_claim()
            while self.hand:
                self._run(self.hand.pop())
                if self.rng.random() < 0.3:
                    yield
            if self.rng.random() < 0.4:
                yield from self._serve()

    def _join(self) -> Iterator[None]:
        number = new_identity()
        self.who = Identity(number, self.label, "host", f"process {number}", LEASE_SECONDS * SECOND)
        #: Leases that were granted to this number and taken from it.
        self.robbed: list[int] = []
        self.own: set[int] = set()
        self.write(lambda tx: workers.join(tx, self.who, {}, {}))
        yield

    def _settle_and_claim(self) -> Iterator[None]:
        said, self.said = self.said, []
        ended = [one for one, _ in said if one.state in (State.DONE, State.SKIPPED, State.FAILED)]
        again = [one for one, _ in said if one.state is State.RETRY_LATER]
        back = [one.lease for one, _ in said if one.state is State.PENDING]
        go_on = self.rng.random() < 0.5
        wanted = [self.rng.random() for _ in range(2)]
        most = self.rng.randint(1, 3)

        def work(tx: Transaction) -> tuple[list[Lease], list[Lease], set[tuple[int, int]]]:
            known = layout(tx)
            self.story.names.update((row.id, row.name) for row in known.stages.values())
            stages = [row.id for row in known.of_pipeline("p")]
            moved = complete(tx, ended, stages if go_on else ())
            accepted = {
                (token, stage)
                for one in ended
                for token, stage in ask(
                    tx,
                    "SELECT lease, stage FROM holdfast_outcomes WHERE item = :item AND stage = :stage",
                    item=one.lease.item,
                    stage=one.lease.stage,
                )
            }
            fail(tx, again)
            release(tx, back, "stop")
            chosen = {stages[int(share * len(stages))] for share in wanted}
            taken = [lease for stage in sorted(chosen) for lease in claim(tx, self.who.id, stage, most)]
            return moved, taken, accepted

        moved, taken, accepted = self.write(work, exclusive=must_be_alone(ended))
        for one, value in said:
            if (one.lease.id, one.lease.stage) in accepted:
                self.story.tell("accepted", one.lease, value)
            if one.lost and one.lease.id in self.own:
                self.robbed.append(one.lease.id)
        for lease in taken:
            self.own.add(lease.id)
            self.story.tell("claimed", lease)
        self.hand += moved + taken
        self.story.idle = 0 if self.hand or said else self.story.idle + 1
        yield

    def _run(self, lease: Lease) -> None:
        """The handler: what it returns names what it has seen, so that nobody can build on a result that does not stand."""
        rng = random.Random(f"{self.story.seed} {lease.key} {lease.stage} {lease.attempt} {lease.id}")
        stage = self.story.names[lease.stage]
        seen = {self.story.names[number]: codec.decode(text) for number, text in sorted(lease.results.items())}
        value = {"stage": stage, "choice": rng.randint(1, 2) if self.story.person else lease.id, "seen": seen}
        self.story.tell("ran", lease, value, seen)
        fate = rng.random()
        delay = rng.choice([0, SECOND, 5 * SECOND])
        trouble = {"error": "boom", "traceback": "Traceback"}
        if fate < 0.70:
            text = codec.encode(value)
            one = FinishedAttempt(
                lease,
                State.DONE,
                "1",
                text,
                codec.digest(value),
                took_us=3,
                routine=rng.random() < 0.8 and lease.is_first,
            )
        elif fate < 0.74:
            one = FinishedAttempt(lease, State.SKIPPED, "1", output_hash=codec.digest(None))
        elif fate < 0.77:
            one = FinishedAttempt(lease, State.FAILED, "1", **trouble)
        elif fate < 0.90:
            one = FinishedAttempt(
                lease, State.RETRY_LATER, "1", delay_us=delay, company=rng.choice([1, 1, 2]), **trouble
            )
        elif fate < 0.95:
            one = FinishedAttempt(lease, State.RETRY_LATER, "1", delay_us=delay, snooze=True)
        else:
            one = FinishedAttempt(lease, State.PENDING)
        self.said.append((one, value if one.state is State.DONE else None))

    def _serve(self) -> Iterator[None]:
        if self.rng.random() < 0.7:
            self.write(lambda tx: reap.remove_silent(tx, self.story.clock.name))
            yield
        for service in (lambda tx: reap.reap(tx, 2), lambda tx: promote(tx, 3), lambda tx: backfill(tx, 2)):
            if self.rng.random() < 0.8:
                self.write(service)
                yield
        if self.rng.random() < 0.2:
            self.write(lambda tx: fold(tx, 20))
            yield

    def write(self, work: Callable[[Transaction], T], *, exclusive: bool = False) -> T:
        """As a worker does: the same write until it is known to have taken place."""
        writing = self.store.writing(work, slot=self.who.id, exclusive=exclusive)
        while True:
            try:
                return writing.run()
            except StoreUnavailable:
                pass

    # Faults -------------------------------------------------------------------------------------------------

    def reached(self, point: str) -> None:
        """Called at each point on the actor's way, in its thread."""
        order = self.story.turn(self, point)
        if order is None:
            return
        self.story.fired[order] += 1
        if order.startswith("crash"):
            # As the end of a process: the connection is closed, and nobody says ROLLBACK. SQLite's is worth keeping:
            # there the next one that opens the file does the same.
            self.store.close() if self.story.threaded else self.store.driver.rollback()
            raise Crash(point)
        if order == "conflict":
            raise StoreConflict(point)
        if order == "cut" and self.story.threaded:
            self.store.driver.close()
            self.connect()
        raise StoreUnavailable(point)


class Person(Actor):
    """Sends things back, sets things aside, deploys another stage. Never dies."""

    def life(self) -> Iterator[None]:
        self.who = Identity(new_identity(), self.label, "host", "person", SECOND)
        acts = [self._retry, self._rerun, self._rerun, self._rerun, self._cancel, self._deploy]
        self.rng.shuffle(acts)
        for act in acts[: self.rng.randint(2, 6)]:
            for _ in range(self.rng.randint(3, 15)):
                yield
            while True:
                try:
                    act()
                    break
                except StoreUnavailable:
                    yield
            yield
        self.story.person_is_done = True
        while True:
            yield

    def _retry(self) -> None:
        actions.act(self.store, retry_and_cancel.RetryStages(selection.Which("p")), selection.Who("person"))

    def _rerun(self) -> None:
        stage = self.rng.choice(list(SHAPE))
        which = selection.Which("p", stage, frozenset({State.DONE, State.SKIPPED}), self.rng.choice(self.story.keys))
        actions.act(self.store, retry_and_cancel.RetryStages(which), selection.Who("person"))

    def _cancel(self) -> None:
        key = self.rng.choice(self.story.keys)
        self.story.cancelled.add(key)
        actions.act(self.store, retry_and_cancel.CancelStages(selection.Which("p", key=key)), selection.Who("person"))

    def _deploy(self) -> None:
        self.write(lambda tx: register(tx, pipeline(LATER)), exclusive=True)


def pipeline(shape: dict[str, tuple[str, ...]]) -> PipelineSpec:
    stages = [StageSpec(name, _handler, after, max_attempts=MAX_ATTEMPTS) for name, after in shape.items()]
    return PipelineSpec.build("p", stages)


def _handler(item: object, ctx: object) -> None:
    """Never called."""


class Story:
    """One seed: everything that happens follows from it."""

    threaded = False
    #: How much time passes in a step: so much that a dead worker is missed soon, so little that living ones beat in time.
    paces: tuple[float, ...]

    def __init__(self, stores: dict[str, Store], clock: ManualClock, seed: int) -> None:
        self.seed = seed
        self.clock = clock
        self.store = stores["main"]
        self.rng = random.Random(seed)
        self.person = seed % 3 == 0
        self.person_is_done = not self.person
        self.keys = [f"k{n}" for n in range(self.rng.randint(1, 3))]
        self.cancelled: set[str] = set()
        #: Stages by number, as far as somebody has met them.
        self.names: dict[int, str] = {}
        self.ledger: list[Line] = []
        self.fired: Counter[str] = Counter()
        self.steps = 0
        #: How often in a row nobody had anything to do.
        self.idle = 0
        self.frozen: dict[Actor, int] = {}
        self._write_ledger = threading.Lock()
        wipe(self.store)
        for store in stores.values():
            store.cache.clear()
        self.store.write(lambda tx: register(tx, pipeline(SHAPE)), exclusive=True)
        self.store.write(lambda tx: add_items(tx, "p", read_items(self.keys)))
        self.store.write(promote)
        self.actors: list[Actor] = [
            Actor(self, label, stores[label], f"{seed} {label}") for label in ("ann", "bob", "cyd")
        ]
        if self.person:
            self.actors.append(Person(self, "person", stores["person"], f"{seed} person"))

    # The schedule -------------------------------------------------------------------------------------------

    def run(self) -> None:
        raise NotImplementedError

    def turn(self, actor: Actor, point: str) -> str | None:
        """An actor has reached a point; which fault strikes, if any?"""
        raise NotImplementedError

    def step(self) -> None:
        """Time passes; now and then somebody is held up for longer than a lease."""
        self.steps += 1
        if self.steps > MOST_STEPS:
            raise AssertionError(f"not at an end after {MOST_STEPS} steps: {self.store.read(status.status)}")
        self.clock.advance(self.rng.choice(self.paces))
        if self.idle >= 4:
            # All that is left is delayed, or held by the dead.
            self.clock.advance(LEASE_SECONDS / 3)
            self.idle = 0
        for actor, left in list(self.frozen.items()):
            if left <= 0:
                del self.frozen[actor]
            else:
                self.frozen[actor] = left - 1
        if self.troubled and not self.frozen and self.rng.random() < 0.012:
            self.fired["stall"] += 1
            self.frozen[self.rng.choice(self.actors)] = self.rng.randint(20, 60)
            self.clock.advance(LEASE_SECONDS + 1)

    @property
    def troubled(self) -> bool:
        return self.steps < TROUBLED_STEPS

    def draw_fault(self, actor: Actor, point: str) -> str | None:
        if not self.troubled or isinstance(actor, Person) or self.rng.random() > 0.03:
            return None
        if point == "commit.before":
            return "crash before commit"
        if point == "commit.after":
            return self.rng.choice(["crash after commit", "lost reply"])
        return self.rng.choice(["crash in transaction", "cut", "conflict"])

    def is_over(self) -> bool:
        """The person is gone, and nothing is open."""
        if not self.person_is_done:
            return False
        return not self.store.read(
            lambda tx: ask(
                tx,
                "SELECT 1 FROM holdfast_item_stages WHERE state IN ('pending', 'retry_later', 'in_progress') "
                "UNION ALL SELECT 1 FROM holdfast_stages WHERE active = 1 AND backfill_next IS NOT NULL LIMIT 1",
            )
        )

    # The judgement ------------------------------------------------------------------------------------------

    def tell(self, what: str, lease: Lease, value: Any = None, seen: Any = None) -> None:
        line = Line(what, lease.key, self.names[lease.stage], lease.id, lease.attempt, value, seen)
        with self._write_ledger:
            self.ledger.append(line)

    def judge(self) -> None:
        """Every item ends once; nothing is lost; no stage is completed twice; nobody built on what does not stand."""
        stages = {row.name: row for row in self.store.read(layout).stages.values()}
        rows = self.store.read(
            lambda tx: ask(
                tx,
                "SELECT i.key, s.name, o.state, o.attempts, o.lease, o.result FROM holdfast_outcomes o "
                "JOIN holdfast_items i ON i.id = o.item JOIN holdfast_stages s ON s.id = o.stage",
            )
        )
        outcomes = {(key, stage): rest for key, stage, *rest in rows}
        assert check(self.store) == []
        for key in self.keys:
            for name, stage in stages.items():
                ready = all(outcomes.get((key, before), [""])[0] in PASSED for before in stage.after)
                if (key, name) in outcomes:
                    self._judge_stage(key, name, stage.after, outcomes)
                else:
                    assert not ready, f"{key}, {name}: all before it has passed, and it was lost"

    def _judge_stage(
        self, key: str, stage: str, after: tuple[str, ...], outcomes: dict[tuple[str, str], list[Any]]
    ) -> None:
        state, attempts, token, result = outcomes[key, stage]
        where = f"{key}, {stage} ({state}, attempt {attempts}, token {token})"
        own = [line for line in self.ledger if (line.key, line.stage) == (key, stage)]
        assert all(1 <= line.attempt <= MAX_ATTEMPTS for line in own), where
        accepted = [line.token for line in own if line.what == "accepted"]
        if not self.person:
            # The commit of a worker that died at once after it was never acknowledged; no other may have been.
            assert set(accepted) <= {token}, f"{where}: accepted were {accepted}"
            late = [line.token for line in own if line.what == "claimed" and line.token > token]
            assert not late, f"{where}: claimed again as {late} after it had ended"
        assert len(accepted) == len(set(accepted)), f"{where}: accepted twice under one token: {accepted}"
        if state == "exhausted":
            assert attempts == MAX_ATTEMPTS, where
        if state == "done":
            ran = [line for line in own if line.what == "ran" and line.token == token]
            assert len(ran) == 1, f"{where}: its token ran {len(ran)} times"
            assert codec.decode(result) == ran[0].value, f"{where}: the result is not what its token came to"
            assert ran[0].attempt == attempts, where
            # What stands behind a stage that failed when it ran again has nothing to be made from, and stays as it was.
            whole = all(outcomes[key, before][0] in ("done", "skipped") for before in after)
            if key not in self.cancelled and whole:
                for before in after:
                    now, _, _, text = outcomes[key, before]
                    if now == "done":
                        assert ran[0].seen.get(before) == codec.decode(text), f"{where}: was built on another {before}"


class Turns(Story):
    """Actors take turns between transactions, in one thread; faults strike within."""

    paces = (0, 0.5, 2)

    def run(self) -> None:
        lives = {actor: actor.life() for actor in self.actors}
        current: list[Actor] = []
        old = points.listen(lambda point: current[0].reached(point) if current else None)
        try:
            while True:
                self.step()
                awake = [actor for actor in self.actors if actor not in self.frozen]
                current.append(self.rng.choice(awake))
                next(lives[current[0]])
                current.clear()
                if self.steps % 5 == 0 and self.is_over():
                    return
        finally:
            current.clear()
            points.listen(old)
            for life in lives.values():
                life.close()

    def turn(self, actor: Actor, point: str) -> str | None:
        # Steps count points here too, so that both kinds of story are troubled for as long.
        self.steps += 1
        return self.draw_fault(actor, point)


class Threads(Story):
    """Each actor in a thread; one at a time goes from one point to its next."""

    threaded = True
    paces = (0, 0.05, 0.3)

    def __init__(self, stores: dict[str, Store], clock: ManualClock, seed: int, watch: psycopg.Connection[Any]) -> None:
        super().__init__(stores, clock, seed)
        self._watch = watch
        self._parked: queue.SimpleQueue[tuple[Actor, str]] = queue.SimpleQueue()
        self._at: dict[Actor, str] = {}
        self._stopping = False
        self._errors: list[BaseException] = []

    def run(self) -> None:
        by_thread: dict[int, Actor] = {}
        threads = [threading.Thread(target=self._live, args=(actor, by_thread), daemon=True) for actor in self.actors]

        def listener(point: str) -> None:
            actor = by_thread.get(threading.get_ident())
            if actor is not None:
                actor.reached(point)

        old = points.listen(listener)
        try:
            for thread in threads:
                thread.start()
            for _ in threads:
                self._someone_parks(STUCK_SECONDS)
            while not self._errors:
                self.step()
                self._let_one_go()
                if self.steps % 40 == 0 and self.is_over():
                    break
        finally:
            self._stopping = True
            for actor in self.actors:
                actor.go.release()
            for thread in threads:
                thread.join(STUCK_SECONDS)
            points.listen(old)
        if self._errors:
            raise self._errors[0]

    def turn(self, actor: Actor, point: str) -> str | None:
        self._parked.put((actor, point))
        actor.go.acquire()
        if self._stopping:
            raise _Stop
        order, actor.order = actor.order, None
        return order

    def _live(self, actor: Actor, by_thread: dict[int, Actor]) -> None:
        by_thread[threading.get_ident()] = actor
        try:
            actor.connect()
            self.turn(actor, "start")
            for _ in actor.life():
                self.turn(actor, "between")
        except _Stop:
            pass
        except BaseException as error:
            self._errors.append(error)
            self._parked.put((actor, "dead"))
        finally:
            actor.store.close()

    def _let_one_go(self) -> None:
        awake = [actor for actor in self.actors if actor in self._at and actor not in self.frozen]
        if not awake:
            if not self._at:
                self._someone_parks(STUCK_SECONDS)  # all wait for locks: the database will choose one
            self.frozen.clear()
            return
        actor = self.rng.choice(awake)
        point = self._at.pop(actor)
        if point not in ("start", "between"):
            actor.order = self.draw_fault(actor, point)
        actor.go.release()
        give_up_at = time.monotonic() + STUCK_SECONDS
        while actor not in self._at and not self._errors:
            if not self._someone_parks(0.004) and self._is_blocked(actor):
                return
            if time.monotonic() > give_up_at:
                raise AssertionError(f"{actor.label} is stuck after {point}")

    def _someone_parks(self, patience: float) -> bool:
        try:
            actor, point = self._parked.get(timeout=patience)
        except queue.Empty:
            return False
        self._at[actor] = point
        return True

    def _is_blocked(self, actor: Actor) -> bool:
        waits = "SELECT 1 FROM pg_locks WHERE pid = %s AND NOT granted"
        return self._watch.execute(waits, [actor.backend]).fetchone() is not None
