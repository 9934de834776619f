"""The engine as a test sees it: a store, a clock set by hand, and one short call per operation.

    app = App(store, clock)
    app.pipeline({"a": [], "b": ["a"]}, max_attempts=3)
    app.add(["page-1"])
    [lease] = app.claim(worker="w")
    app.complete(lease, {"n": 1})
    assert app.states("page-1") == {"a": "done", "b": "pending"}

Every call is one committed write, as a worker makes it. Workers are known by a label and join when they are
first mentioned; a label that joins again is another worker. Nothing here decides anything: what an operation
did is read back from the views and tables. `LeaseLost` is raised where the engine refused an attempt.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, TypeVar

from holdfast.clock import microseconds
from holdfast.engine import actions, changed_items, reap, retry_and_cancel, selection, workers
from holdfast.engine import add as adding
from holdfast.engine.add import Merge
from holdfast.engine.backfill import backfill
from holdfast.engine.claim import Lease, claim, claim_at_once
from holdfast.engine.complete import complete, must_be_alone
from holdfast.engine.due_retries import Promoted, promote
from holdfast.engine.fail import fail
from holdfast.engine.finish_leases import FinishedAttempt
from holdfast.engine.fold_counts import fold
from holdfast.engine.hand_back import release
from holdfast.engine.layout import layout
from holdfast.engine.on_hold import hold, hold_in_doubt
from holdfast.engine.reap import Reaped
from holdfast.engine.register import Registered, register
from holdfast.engine.upsert import Added, at_once, upsert
from holdfast.engine.workers import Identity
from holdfast.errors import LeaseLost, UsageError
from holdfast.model import codec
from holdfast.model.layout import Layout, StageRow
from holdfast.model.stage import PipelineSpec, StageSpec
from holdfast.model.states import State
from holdfast.store import Store, Transaction
from holdfast.store.store import new_identity
from holdfast.testing import ManualClock

T = TypeVar("T")

#: What a pipeline looks like: each stage with the stages before it.
Shape = Mapping[str, Sequence[str]]
Counts = dict[str, dict[str, int]]

LEASE_SECONDS = 30.0
HOST = "host"


def handler(item: object, ctx: object) -> None:
    """Stands where a stage needs a function; the harness never calls it."""


class App:
    """One store, one pipeline at a time, any number of workers."""

    def __init__(self, store: Store, clock: ManualClock) -> None:
        self.store = store
        self.clock = clock
        self.name = "p"
        self._workers: dict[str, Identity] = {}
        #: Those that have the registered version of every stage, whichever it is.
        self._current: set[str] = set()
        #: Who claimed which lease: a worker adds to its own counts, also when it is late.
        self._holders: dict[int, int] = {}

    def beside(self) -> App:
        """The same database through a connection and workers of its own: for use in another thread."""
        other = App(self.store.another(), self.clock)
        other.name = self.name
        return other

    # Pipelines and items ------------------------------------------------------------------------------------

    def pipeline(
        self,
        shape: Shape,
        *,
        name: str = "p",
        max_attempts: int = 5,
        version: str = "1",
        only: Mapping[str, Mapping[str, Any]] | None = None,
    ) -> Registered:
        """Register stages; `only` holds settings of single ones. Later calls mean this pipeline."""
        self.name = name
        spec = PipelineSpec.build(
            name,
            [
                StageSpec(
                    stage,
                    handler,
                    after=tuple(before),
                    **{"max_attempts": max_attempts, "version": version, **(only or {}).get(stage, {})},
                )
                for stage, before in shape.items()
            ],
        )
        done = self.store.write(lambda tx: register(tx, spec), exclusive=True)
        for worker in self._current & self._workers.keys():
            self._tell_versions(worker)
        return done

    def add(
        self, items: Iterable[str | Mapping[str, Any]], *, merge: Merge = adding.overwrite, priority: int = 0
    ) -> Added:
        ready = adding.read_items(items)
        slot = new_identity()
        return self.store.write(
            lambda tx: upsert(tx, self.name, ready, partial(adding.merged, merge), priority),
            slot=slot,
            at_once=at_once(self.store.cache.get("layout"), self.name, ready, priority, slot),
        ).added

    def backfill(self, most: int = 1000) -> int:
        """Back-fill until nothing is left to look at; how many items were looked at."""
        return sum(_until_zero(lambda: self.store.write(lambda tx: backfill(tx, most))))

    # Workers ------------------------------------------------------------------------------------------------

    def join(
        self,
        worker: str,
        *,
        lease_seconds: float = LEASE_SECONDS,
        host: str = HOST,
        process: str = "",
        version: str = "",
    ) -> Identity:
        """With no version given, it has the registered one of each stage, always."""
        id_ = new_identity()
        who = Identity(id_, worker, host, process or f"process {id_}", microseconds(lease_seconds))
        self._workers[worker] = who
        versions = {row.id: version or row.version for row in self.layout().of_pipeline(self.name)}
        self.store.write(lambda tx: workers.join(tx, who, versions, {}), slot=who.id)
        if not version:
            self._current.add(worker)
        return who

    def _tell_versions(self, worker: str) -> None:
        """As if the worker had been deployed anew, with what it holds."""
        versions = {str(row.id): row.version for row in self.layout().of_pipeline(self.name)}
        self.execute(
            "UPDATE holdfast_workers SET versions = :versions WHERE id = :id",
            versions=json.dumps(versions),
            id=self._workers[worker].id,
        )

    def worker(self, label: str) -> Identity:
        """Who the label means now."""
        return self._workers.get(label) or self.join(label)

    def beat(self, worker: str) -> bool:
        """False if the worker was declared dead."""
        who = self._workers[worker]
        return self.store.write(lambda tx: workers.beat(tx, who, {}), slot=who.id)

    def leave(self, worker: str) -> None:
        who = self._workers[worker]
        self.store.write(lambda tx: workers.leave(tx, who, {}), slot=who.id)

    def living(self) -> set[str]:
        """The labels of the workers the database believes alive."""
        return {row[0] for row in self.query("SELECT name FROM holdfast_workers")}

    # Attempts -----------------------------------------------------------------------------------------------

    def claim(self, worker: str = "w", stage: str | None = None, most: int = 1) -> list[Lease]:
        """Take work of one stage, or of the first stage that has some."""
        who = self.worker(worker)
        for row in [self.stage(stage)] if stage else self.layout().of_pipeline(self.name):
            leases = self._claim(who, row.id, most)
            if leases:
                return leases
        return []

    def complete(
        self,
        lease: Lease,
        value: Any = None,
        *,
        onward: Collection[str] = (),
        took_seconds: float = 0.0,
        version: str = "1",
    ) -> list[Lease]:
        """Finish with a result; returns the lease again if it moved on to one of the stages in `onward`."""
        one = self.finished(lease, value, took_seconds=took_seconds, version=version)
        one.routine = lease.is_first
        stages = [self.stage(name).id for name in onward]
        return self._finish(one, lambda tx: complete(tx, [one], stages))

    def skip(self, lease: Lease, reason: str = "") -> list[Lease]:
        one = FinishedAttempt(lease, State.SKIPPED, "1", error=reason or None)
        return self._finish(one, lambda tx: complete(tx, [one]))

    def permanent(self, lease: Lease, error: str = "never works", *, took_seconds: float = 0.0) -> None:
        one = FinishedAttempt(
            lease, State.FAILED, "1", error=error, traceback="Traceback", took_us=microseconds(took_seconds)
        )
        self._finish(one, lambda tx: complete(tx, [one]))

    def fail(
        self,
        lease: Lease,
        error: str = "boom",
        *,
        delay: float = 0.0,
        company: int = 1,
        took_seconds: float = 0.0,
    ) -> None:
        """The handler raised; the next attempt is due after `delay` seconds."""
        one = FinishedAttempt(
            lease,
            State.RETRY_LATER,
            "1",
            error=error,
            traceback="Traceback",
            delay_us=microseconds(delay),
            company=company,
            took_us=microseconds(took_seconds),
        )
        self._finish(one, lambda tx: fail(tx, [one]))

    def snooze(self, lease: Lease, seconds: float, reason: str | None = None) -> None:
        one = FinishedAttempt(lease, State.RETRY_LATER, error=reason, delay_us=microseconds(seconds), snooze=True)
        self._finish(one, lambda tx: fail(tx, [one]))

    def release(self, lease: Lease, reason: str = "shutdown") -> None:
        if not self.store.write(lambda tx: release(tx, [lease], reason), slot=self._slot(lease)):
            raise _lost(lease)

    def hold_in_doubt(self, lease: Lease, reason: str = "a call may have been made") -> None:
        one = FinishedAttempt(lease, State.ON_HOLD, "1", error=reason)
        self._finish(one, lambda tx: hold_in_doubt(tx, [one]))

    def run_through(self, value: Any = None, *, worker: str = "w") -> int:
        """Claim and complete until nothing is waiting; how many attempts that took."""
        done = 0
        while leases := self.claim(worker, most=100):
            for lease in leases:
                self.complete(lease, value)
            done += len(leases)
        return done

    def finished(
        self, lease: Lease, value: Any = None, *, took_seconds: float = 0.0, version: str = "1"
    ) -> FinishedAttempt:
        """What a worker says of a handler that returned."""
        return FinishedAttempt(
            lease,
            State.DONE,
            version,
            result=codec.encode(value),
            output_hash=codec.digest(value),
            took_us=microseconds(took_seconds),
        )

    # Services -----------------------------------------------------------------------------------------------

    def promote(self, most: int = 500) -> Promoted:
        return self.store.write(lambda tx: promote(tx, most))

    def reap(self, most: int = 100) -> Reaped:
        """Bury the silent and free every lease that nobody vouches for."""
        clock = self.store.connect().clock_name
        self.store.write(lambda tx: reap.remove_silent(tx, clock))
        total = Reaped(0, 0)
        while (step := self.store.write(lambda tx: reap.reap(tx, most))).released:
            total = Reaped(total.released + step.released, total.exhausted + step.exhausted)
        return total

    def kill(self, worker: str) -> Reaped:
        """The worker's process is gone, and everyone knows; its leases are freed."""
        who = self._workers.pop(worker)
        self.store.write(lambda tx: reap.remove_ended(tx, who.host, 0, lambda process: process != who.process))
        return self.reap()

    def fold(self, most: int = 500) -> int:
        """Fold counts until nothing is left to fold; how many rows."""
        return sum(_until_zero(lambda: self.store.write(lambda tx: fold(tx, most))))

    # What a person does -------------------------------------------------------------------------------------

    def retry(
        self,
        *,
        stage: str | None = None,
        states: Collection[str] = (),
        key: str | None = None,
        error: str | None = None,
        older_than: float | None = None,
        dry_run: bool = False,
        reason: str = "",
    ) -> dict[str, int]:
        which = self._which(stage, states, key, error, older_than)
        return self._act(retry_and_cancel.RetryStages(which), reason, dry_run)

    def cancel(
        self,
        *,
        stage: str | None = None,
        states: Collection[str] = (),
        key: str | None = None,
        error: str | None = None,
        older_than: float | None = None,
        dry_run: bool = False,
        reason: str = "",
    ) -> dict[str, int]:
        which = self._which(stage, states, key, error, older_than)
        return self._act(retry_and_cancel.CancelStages(which), reason, dry_run)

    def _act(self, kind: actions.ActionKind, reason: str, dry_run: bool) -> dict[str, int]:
        if dry_run:
            return _plain(actions.count(self.store, kind))
        return _plain(actions.act(self.store, kind, selection.Who("me", reason)))

    def hold(self, stage: str, key: str, reason: str = "asked") -> int:
        """Put what waits at a stage on hold; how many."""
        number = self.stage(stage).id
        pattern = self.store.connect().dialect.glob_pattern(key)
        items = self.query("SELECT id FROM holdfast_items WHERE key {glob} :key", key=pattern)
        return self.store.write(lambda tx: hold(tx, number, [item for (item,) in items], "person", reason))

    # What is there ------------------------------------------------------------------------------------------

    def states(self, key: str) -> dict[str, str]:
        """The state of each stage that has begun for an item. Two rows for one stage are an error."""
        states: dict[str, str] = {}
        for stage, state in self.query(
            "SELECT s.name, x.state FROM holdfast_item_stages x JOIN holdfast_stages s ON s.id = x.stage "
            "JOIN holdfast_pipelines p ON p.id = x.pipeline WHERE x.key = :key AND p.name = :pipeline",
            key=key,
            pipeline=self.name,
        ):
            if stage in states:
                raise AssertionError(f"{key!r} is both {states[stage]} and {state} at stage {stage!r}")
            states[stage] = state
        return states

    def status(self, key: str) -> str:
        [(status,)] = self.query(
            "SELECT x.status FROM holdfast_item_status x JOIN holdfast_pipelines p ON p.id = x.pipeline "
            "WHERE x.key = :key AND p.name = :pipeline",
            key=key,
            pipeline=self.name,
        )
        return str(status)

    def row(self, key: str, stage: str) -> dict[str, Any]:
        """One stage of an item as the view has it."""
        columns = "state, attempts, started_at, ended_at, elapsed_us, next_attempt_at, error, updated_at"
        [found] = self.query(
            f"SELECT {columns} FROM holdfast_item_stages WHERE key = :key AND stage = :stage",
            key=key,
            stage=self.stage(stage).id,
        )
        return dict(zip(columns.split(", "), found, strict=True))

    def outcome(self, key: str, stage: str) -> dict[str, Any] | None:
        """The checkpoint, also while the stage is being run again."""
        columns = "state, attempts, lease, version, output_hash, error, result"
        for found in self.query(
            f"SELECT {', '.join(f'o.{column}' for column in columns.split(', '))} FROM holdfast_outcomes o "
            "JOIN holdfast_items i ON i.id = o.item WHERE i.key = :key AND o.stage = :stage",
            key=key,
            stage=self.stage(stage).id,
        ):
            outcome = dict(zip(columns.split(", "), found, strict=True))
            outcome["result"] = None if outcome["result"] is None else codec.decode(outcome["result"])
            return outcome
        return None

    def data(self, key: str) -> Any:
        [(text,)] = self.query(
            "SELECT i.data FROM holdfast_items i JOIN holdfast_pipelines p ON p.id = i.pipeline "
            "WHERE i.key = :key AND p.name = :pipeline",
            key=key,
            pipeline=self.name,
        )
        return codec.decode(text)

    def history(self, key: str) -> list[str]:
        """The events of an item, oldest first."""
        return [
            row[0]
            for row in self.query(
                "SELECT e.event FROM holdfast_events e JOIN holdfast_items i ON i.id = e.item "
                "WHERE i.key = :key ORDER BY e.id",
                key=key,
            )
        ]

    def events(self, event: str) -> list[dict[str, Any]]:
        """What the events of one kind say, oldest first."""
        rows = self.query("SELECT data FROM holdfast_events WHERE event = :event ORDER BY id", event=event)
        return [json.loads(row[0]) for row in rows]

    def counts(self) -> Counts:
        """How many items are in which state at which stage, from the counters."""
        return _nested(self.query("SELECT name, state, n FROM holdfast_stage_stats WHERE n <> 0"))

    def recount(self) -> Counts:
        """The same, counted from the rows themselves."""
        return _nested(
            self.query(
                "SELECT s.name, x.state, COUNT(*) FROM holdfast_item_stages x JOIN holdfast_stages s ON s.id = x.stage "
                "GROUP BY s.name, x.state"
            )
        )

    def made_by(self) -> Counts:
        """How many results of which version count as done or skipped, by stage, as it is kept."""
        return _nested(
            self.query(
                "SELECT s.name, v.version, CAST(SUM(v.n) AS BIGINT) FROM holdfast_versions v JOIN holdfast_stages s "
                "ON s.id = v.stage GROUP BY s.name, v.version HAVING SUM(v.n) <> 0"
            )
        )

    def remade_by(self) -> Counts:
        """The same, counted from the rows themselves."""
        return _nested(
            self.query(
                "SELECT s.name, o.version, COUNT(*) FROM holdfast_item_stages x JOIN holdfast_stages s ON s.id = x.stage "
                "JOIN holdfast_outcomes o ON o.item = x.item AND o.stage = x.stage "
                "WHERE x.state IN ('done', 'skipped') GROUP BY s.name, o.version"
            )
        )

    def listed(self) -> set[str]:
        """The keys of items that are listed as changed."""
        return {
            key for (key,) in self.query("SELECT i.key FROM holdfast_changed c JOIN holdfast_items i ON i.id = c.item")
        }

    def clear(self, most: int = 500) -> int:
        """Look at every listed item once; how many left the list."""
        cleared, place = self.store.write(lambda tx: changed_items.clear(tx, changed_items.WalkPlace(), most))
        while place.item:
            n, place = self.store.write(lambda tx, place=place: changed_items.clear(tx, place, most))  # type: ignore[misc]
            cleared += n
        return cleared

    def layout(self) -> Layout:
        return self.store.read(layout)

    def stage(self, name: str) -> StageRow:
        found = self.layout().find(self.name, name)
        if found is None:
            raise UsageError(f"no stage {name!r} in pipeline {self.name!r}")
        return found

    def query(self, text: str, /, **params: Any) -> list[tuple[Any, ...]]:
        """Read with SQL of the test's own, written as in store/sql."""
        return [tuple(row) for row in self.store.read(lambda tx: _run(tx, text, params))]

    def execute(self, text: str, /, **params: Any) -> list[tuple[Any, ...]]:
        """Write with SQL of the test's own: only to set a scene that operations cannot set."""
        return [tuple(row) for row in self.store.write(lambda tx: _run(tx, text, params))]

    # The parts ----------------------------------------------------------------------------------------------

    def _claim(self, who: Identity, stage: int, most: int) -> list[Lease]:
        known: Layout | None = self.store.cache.get("layout")
        at_once = (
            claim_at_once(
                known, who.id, stage, most, self._holders.__contains__, self.store.read, lambda leases, _: leases
            )
            if known is not None and not known.parents(stage)
            else None
        )
        leases = self.store.write(lambda tx: claim(tx, who.id, stage, most), slot=who.id, at_once=at_once)
        self._holders.update((lease.id, who.id) for lease in leases)
        return leases

    def _finish(self, one: FinishedAttempt, work: Callable[[Transaction], T]) -> T:
        """Commit what a worker says of an attempt; raise if the engine refused it."""
        answer = self.store.write(work, slot=self._slot(one.lease), exclusive=must_be_alone([one]))
        if one.lost:
            raise _lost(one.lease)
        return answer

    def _slot(self, lease: Lease) -> int:
        return self._holders.get(lease.id, 0)

    def _which(
        self,
        stage: str | None,
        states: Collection[str],
        key: str | None,
        error: str | None,
        older_than: float | None,
    ) -> selection.Which:
        return selection.Which(
            pipeline=self.name,
            stage=stage,
            states=frozenset(State(state) for state in states),
            key=key,
            error=error,
            older_than_us=None if older_than is None else microseconds(older_than),
        )


@contextmanager
def connected(app: App) -> Iterator[App]:
    """The same database through another connection, closed at the end."""
    other = app.beside()
    try:
        yield other
    finally:
        other.store.close()


def _lost(lease: Lease) -> LeaseLost:
    return LeaseLost(f"item {lease.key!r}, stage {lease.stage}: lease {lease.id} no longer stands")


def _run(tx: Transaction, text: str, params: dict[str, Any]) -> list[tuple[Any, ...]]:
    driver = tx.store.driver
    # The name is the text: a driver may keep what it made of a statement of this name.
    return driver.run(driver.dialect.render(text, text), params)


def _until_zero(step: Callable[[], int]) -> Iterator[int]:
    while count := step():
        yield count


def _plain(counts: Mapping[str, int]) -> dict[str, int]:
    return {str(state): n for state, n in Counter(counts).items() if n}


def _nested(rows: Iterable[tuple[Any, ...]]) -> Counts:
    counts: Counts = {}
    for stage, state, n in rows:
        counts.setdefault(stage, {})[state] = int(n)
    return counts
