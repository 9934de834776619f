"""Holdfast: one store with the pipelines that use it, and a method for every act and every question.

Everything the command line does is a call of this class, so a test or a notebook can make it too.
"""

from __future__ import annotations

import logging
import math
import os
import platform
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from datetime import datetime
from functools import partial
from typing import Any, TypeVar

from holdfast import schema
from holdfast.answers.action import ActionDetails, ActionList
from holdfast.answers.alert import AlertStatus
from holdfast.answers.audit import AuditPage
from holdfast.answers.cost import Costs
from holdfast.answers.diagnosis import Diagnosis
from holdfast.answers.error_group import ErrorGroups
from holdfast.answers.event import EventCounts, EventPage, Events
from holdfast.answers.item import History, ItemDetails, Items
from holdfast.answers.limit import ResourceLimits
from holdfast.answers.matrix import Matrix
from holdfast.answers.paid_call import Ledger, Memos
from holdfast.answers.plan import OutdatedWorker, Plan
from holdfast.answers.run_summary import Summary
from holdfast.answers.source import Sources
from holdfast.answers.status import Status
from holdfast.answers.throughput import Throughput
from holdfast.answers.units import micros_since_1970
from holdfast.answers.why import Explanation
from holdfast.answers.worker import Workers
from holdfast.blobs import BLOBS_VARIABLE, Blob, Blobs, open_blobs
from holdfast.clock import Clock, microseconds
from holdfast.engine import (
    actions,
    alert_rules,
    alert_status,
    audit,
    collect_blobs,
    costs,
    error_groups,
    event_pages,
    events,
    gauges,
    limits,
    matrix,
    plan_and_reprocess,
    poll_sources,
    prune,
    reconcile_money,
    recount,
    resolve,
    show_item,
    status,
    stray_rows,
    throughput_by_minute,
)
from holdfast.engine import change_limits as tuning
from holdfast.engine import pause as pausing
from holdfast.engine.actions import ActionCounts
from holdfast.engine.add import CHUNK, Adder, Addition, Merge, Written, add_within, overwrite
from holdfast.engine.calls_left_open import doubt_calls_left_open
from holdfast.engine.change_limits import Declared, declare, defined_resources, is_declared
from holdfast.engine.check import check
from holdfast.engine.delete import Delete
from holdfast.engine.doctor_findings import findings, findings_in_facts
from holdfast.engine.events import record_user_event
from holdfast.engine.forget import Forget, Restore
from holdfast.engine.item_filters import Narrowed, listed_items
from holdfast.engine.layout import layout
from holdfast.engine.ledger import take_up_old_payments
from holdfast.engine.look_ahead import ActionKind
from holdfast.engine.on_hold import Outdated, outdated_workers
from holdfast.engine.plan_and_reprocess import Accept, Reprocess
from holdfast.engine.register import Registered, as_registered, changes_of, is_registered, register
from holdfast.engine.request_look import request_look
from holdfast.engine.resolve import Resolve
from holdfast.engine.retry_and_cancel import CancelStages, RetryStages
from holdfast.engine.selection import Who, means_all_on_hold, stages_of
from holdfast.engine.upsert import Added, keys_for
from holdfast.engine.why import Why
from holdfast.errors import AlreadyRunning, RunFailed, StoreBroken, UsageError
from holdfast.export.results import Results
from holdfast.model import codec
from holdfast.model.alert import AlertRule, read_alerts
from holdfast.model.definition_changes import Changes
from holdfast.model.did_you_mean import there_are
from holdfast.model.durations import Duration, seconds
from holdfast.model.item_filter import Which
from holdfast.model.key_pattern import Patterns, several
from holdfast.model.layout import Layout
from holdfast.model.log_lines import logger
from holdfast.model.money import Amount, micros
from holdfast.model.redact import remember_password_of
from holdfast.model.stage import PipelineSpec, check_resources, named_resources
from holdfast.model.states import BAD, State
from holdfast.model.tuning import Tuning
from holdfast.model.urls import as_key
from holdfast.model.user_event import UserEvent
from holdfast.runtime.async_caller import AsyncCaller
from holdfast.runtime.services import MakeService
from holdfast.store import Store, Transaction, open_store
from holdfast.telemetry.metrics_gauges import Sample
from holdfast.telemetry.metrics_gauges import gauges as as_samples
from holdfast.telemetry.metrics_otel import new_metrics
from holdfast.telemetry.tracing import adding
from holdfast.version import VERSION
from holdfast.worker import Settings, Worker

log = logger("holdfast.app")
#: A logger of its own: the command line shows this whatever else it shows.
created_log = logger("holdfast.app.created")

DEFAULT_URL = "sqlite:///holdfast.db"
URL_VARIABLE = "HOLDFAST_URL"
YES_VARIABLE = "HOLDFAST_YES"

T = TypeVar("T")

#: Pipelines, by the address of their store, to which this process has added without knowing the type of their data.
_known_unchecked: set[tuple[str, str]] = set()

#: Gets what changes in a pipeline, and returns whether new work that has a price may run.
Approve = Callable[[Changes], bool]

#: In place of a value: nobody knows what the call returned.
UNKNOWN = object()


def _approve(change: Changes) -> bool:
    """Nobody is there to be asked: the environment decides, and the log says what changes."""
    yes = os.environ.get(YES_VARIABLE, "").lower() not in ("", "0", "false", "no", "off")
    held = [] if yes else change.held_lines()
    for line in [f"{change.pipeline} has changed since this store last saw it:", *change.lines(), *held]:
        log.log(logging.WARNING if held else logging.INFO, "%s", line)
    return yes


class Holdfast:
    """A store and the pipelines that use it."""

    def __init__(
        self,
        url: str | None = None,
        pipelines: Sequence[PipelineSpec] = (),
        *,
        resources: Mapping[str, Mapping[str, Any]] | None = None,
        tunings: Mapping[str, Tuning] | None = None,
        merges: Mapping[str, Merge] | None = None,
        alerts: Sequence[AlertRule] = (),
        services: Sequence[MakeService] = (),
        blobs: str | None = None,
        create: bool = True,
        clock: Clock | None = None,
    ) -> None:
        """`blobs` is where `ctx.keep` puts content: a folder, or an address that fsspec understands; by default
        HOLDFAST_BLOBS, then the folder beside a SQLite file."""
        self.url = url or os.environ.get(URL_VARIABLE) or DEFAULT_URL
        #: Where kept content is, if it was said.
        self.blobs_at = blobs or os.environ.get(BLOBS_VARIABLE) or None
        self._opened_blobs: Blobs | None = None
        remember_password_of(self.url)
        self.pipelines = tuple(pipelines)
        #: By pipeline: what becomes of data that is added to a known key, where nothing else is said.
        self.merges = dict(merges or {})
        self._alerts = {rule.name: rule for rule in alerts}
        #: What runs beside a worker, in threads of its own.
        self._services = tuple(services)
        self._said = Declared.of(resources or {}, tunings or {})
        #: Resources that only the store can define. A new one defines nothing, so none is made for these pipelines.
        self._borrowed = named_resources(self.pipelines) - self._said.limits.keys()
        self._create = create and not self._borrowed
        self._lock = threading.RLock()
        try:
            self._store = open_store(self.url, create=self._create, clock=clock)
        except StoreBroken:
            if create:
                check_resources(self.pipelines, self._said.limits)
            raise
        self._ready = False
        #: Whether the tables are this program's own doing.
        self._is_new = False
        #: Questions have a connection and a lock of their own: they need no right to write, and wait for no act.
        self._reader = self._store.reader()
        self._asking = threading.Lock()
        self._readable = False
        self._registered = False
        self._adder = Adder()

    # Setting up ---------------------------------------------------------------------------------------------------

    @property
    def store(self) -> Store:
        """The store, with tables that fit this code. A SQLite file brings itself up to date."""
        if not self._ready:
            version = self._store.schema_version()
            behind = version < schema.newest() and self._store.kind == "sqlite"
            if version == 0 and self._create:
                # Of several programs that begin together, one makes the tables.
                self._is_new = bool(self._store.upgrade())
                if self._is_new:
                    created_log.info("made a new store: %s", self._store.where)
            elif version > 0 and behind:
                self._upgrade()
            self._store.require_schema()
            self._ready = True
        return self._store

    def schema_version(self) -> int:
        """The version of the tables that are there, 0 for none; makes none."""
        with self._asking:
            return self._reader.schema_version()

    def upgrade(self) -> list[str]:
        """Make or update the tables; return the migrations that were applied."""
        with self._lock:
            return self._upgrade()

    def _upgrade(self) -> list[str]:
        done = self._store.upgrade()
        # What was paid before there was a ledger.
        while self._store.write(take_up_old_payments) or self._store.write(doubt_calls_left_open):
            pass
        return done

    def register(self, approve: Approve | None = None) -> dict[str, Registered]:
        """Make the pipelines, with their limits and guards, known to the store; return what that changed.

        `approve` gets what changes in a pipeline that has items, and returns whether new work that has a price may run;
        otherwise it is put on hold. Without it, HOLDFAST_YES decides, and what changes is logged."""
        with self._lock:
            self.require_resources()
            changed = [spec for spec in self.pipelines if not self.store.read(partial(is_registered, spec=spec))]
            done: dict[str, Registered] = {}
            if changed:
                found = [self.store.read(partial(changes_of, spec=spec)) for spec in changed]
                accepted = {one.pipeline for one in found if not one or (approve or _approve)(one)}
                done = self.store.write(
                    partial(_register, specs=changed, accepted=accepted, said=self._said), exclusive=True
                )
            else:
                self.declare(self._said)
            self._registered = True
            return done

    def require_resources(self) -> None:
        """Refuse a stage that uses a resource which neither this program nor the store defines."""
        with self._lock:
            if self._borrowed:
                there = self.store.read(defined_resources) if self.schema_version() else set()
                check_resources(self.pipelines, self._said.limits.keys() | there)

    def declare(self, said: Declared) -> list[str]:
        """Make what the authors of pipelines say about limits and guards known to the store; return what changed."""
        with self._lock:
            if self.store.read(partial(is_declared, said=said)):
                return []
            self._said = said
            return self.store.write(partial(declare, said=said), exclusive=True)

    def alerts(self, rules: Mapping[str, Mapping[str, Any]]) -> None:
        """Have workers that this app makes from now on notify people: rules by name, as under `alerts` in a job file. A rule
        replaces the one that has its name."""
        self._alerts |= {rule.name: rule for rule in read_alerts(rules)}

    def close(self) -> None:
        # The writer last: it then leaves one file behind, without a log.
        with self._asking:
            self._reader.close()
        with self._lock:
            self._store.close()

    def __enter__(self) -> Holdfast:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # Work ---------------------------------------------------------------------------------------------------------

    def add(
        self,
        pipeline: str,
        items: Iterable[Written],
        *,
        merge: Merge | None = None,
        priority: int = 0,
        connection: Any = None,
        atomic: bool | None = None,
        progress: Callable[[Added], None] | None = None,
    ) -> Added:
        """Add items; those whose key is known are merged. In a pipeline whose data has a type, an item that does not fit it is
        refused, and an item may be a key with a value of that type: `("a.epub", Book(…))`.

        `atomic`: every item is checked, and merged, before the first is written. So it is with lists and other collections. Up
        to 10,000 items, and 4 MiB of data, are written in one transaction: all of them or none, whatever happens. More are
        written two thousand at a time, so that others may write in between: if the process ends, the same `add` again goes on.
        What comes one after another, from a generator or a file, is added as it comes, in constant memory: if one of them is
        refused, or the process ends, what was written before stays, and the same `add` again goes on. `progress` is called
        now and then with what became of the items so far.

        With a SQLAlchemy Connection or Session to this store's database, they are added inside its transaction: they appear
        when the caller commits, and not if it rolls back.
        """
        spec = next((one for one in self.pipelines if one.name == pipeline), None)
        known = None if spec is None else spec.data_type
        to = Addition(pipeline, merge or self.merges.get(pipeline, overwrite), priority, progress, known)
        with adding(pipeline, items) as traceparent:
            to = to if traceparent is None else replace(to, traceparent=traceparent)
            atomic = isinstance(items, Collection) if atomic is None else atomic
            if connection is not None:
                added = add_within(self._registered_store, connection, to, items, atomic=atomic)
            else:
                added = self._adder.add(self._registered_store, to, items, atomic=atomic)
        if spec is None and (self.url, pipeline) not in _known_unchecked:
            self._warn_if_unchecked(pipeline)
        return added

    def _warn_if_unchecked(self, pipeline: str) -> None:
        """Say that the data that was added has a type, if it has one."""
        _known_unchecked.add((self.url, pipeline))
        with self._registered_store() as store:
            declared = store.glance(lambda tx: tx.run("declared_of", name=pipeline))
        if any(type_ for _, type_ in declared):
            log.warning(
                "%s: the data of its items has a type, which this program does not know: what it adds is not checked, and an "
                "item that does not fit fails at its first stage. Add with the pipeline (`%s.add`), or give its spec: "
                "Holdfast(…, [%s.spec])",
                pipeline,
                pipeline,
                pipeline,
            )

    @contextmanager
    def _registered_store(self) -> Iterator[Store]:
        with self._lock:
            if not self._registered:
                self.register()
            yield self.store

    def keys_for(self, pipeline: str, written: Sequence[str]) -> dict[str, str]:
        """The keys that a source would give to these: an address is written one way, unless there is an item under it as it
        stands here; anything else stays as it is."""
        keys = {one: as_key(one) for one in written}
        differ = [one for one, key in keys.items() if one != key]
        with self._lock:
            if differ and not self._registered:
                self.register()
            for at in range(0, len(differ), CHUNK):
                some = differ[at : at + CHUNK]
                keys |= self.store.glance(partial(keys_for, pipeline=pipeline, written=some))
        return keys

    def changes(self) -> list[Changes]:
        """What registering these pipelines would change in the store, with its price. Nothing is changed."""
        if not self.schema_version():
            return []
        found = [self._read(partial(changes_of, spec=spec)) for spec in self.pipelines]
        return [one for one in found if one]

    def worker(
        self, settings: Settings | None = None, approve: Approve | None = None, *, metrics: bool = False
    ) -> Worker:
        """A worker for the pipelines of this app; `approve` is as for `register`. With `metrics` it counts what it does; where
        the program has set up OpenTelemetry, it does so in any case."""
        self.register(approve)
        if self._is_new and self._read(status.is_empty):
            log.warning(
                "%s is a new store without items; if yours are in another one, name it with --store, Pipeline(store=…) or %s "
                "(a relative path begins in the current folder)",
                self._store.where,
                URL_VARIABLE,
            )
        services = [*self._services]
        rules, names = list(self._alerts.values()), [spec.name for spec in self.pipelines]
        if any(self.store.read(lambda tx: alert_rules.undeclared(tx, names, rules))):
            # Before the first item: the rules also count what happens in the first moment of a run.
            self.store.write(lambda tx: alert_rules.declare(tx, names, rules))
        if rules:
            # Loaded here, with its HTTP client: most commands run no worker, and most workers send no alerts.
            from holdfast.worker.background.alerts import alerting

            services.append(alerting(rules))
        counts = new_metrics(self.store.kind, wanted=metrics)
        return Worker(self.store, self.pipelines, settings, services, self._blobs, counts)

    def run(
        self,
        settings: Settings | None = None,
        *,
        until_drained: bool = True,
        on_tick: Callable[[], None] | None = None,
        tick_seconds: float = 0.5,
        raise_on_failure: bool = False,
        caller: AsyncCaller | None = None,
    ) -> Summary:
        """Work until nothing is left to do in these pipelines, here or anywhere, or else until stopped. If something ended
        failed or exhausted, that is logged as a warning, or raised as RunFailed. `caller` is a task that awaits this."""
        worker = self.worker(settings)
        worker.run(until_drained=until_drained, on_tick=on_tick, tick_seconds=tick_seconds, caller=caller)
        summary = self.summary(interrupted=worker.interrupted)
        if summary.failed:
            if raise_on_failure:
                raise RunFailed(summary)
            for line in [f"{summary.failed:,} stages of items did not pass:", *str(summary).splitlines()]:
                log.warning("%s", line)
        return summary

    @contextmanager
    def one_at_a_time(self) -> Iterator[None]:
        """Keep away other runs of these pipelines that ask for the same; raises AlreadyRunning if there is one. The lock ends
        with this process, however that ends. Workers that do not ask for it share the work."""
        with ExitStack() as locks:
            for name in sorted(spec.name for spec in self.pipelines):
                lock = self._store.lock(name)
                if lock is None:
                    raise AlreadyRunning(f"another run of the pipeline {name!r} is at work: this one does nothing")
                locks.callback(lock.close)
            yield

    # Questions ----------------------------------------------------------------------------------------------------

    def status(self) -> Status:
        """Every pipeline with its stages: how many items are in which state, how long attempts took; and who works."""
        pipelines, workers = self._read(lambda tx: (status.status(tx), status.workers(tx)))
        with self._asking:
            wrong = self._reader.cannot_write()
        return Status.of({"pipelines": pipelines, "workers": workers, "cannot_write": wrong})

    def summary(self, *, interrupted: bool = False) -> Summary:
        """How these pipelines stand, with the most frequent errors of what ended badly, and the first few failures."""
        names = {spec.name for spec in self.pipelines}
        pipelines = [one for one in self.status().pipelines if one.name in names]
        bad = [
            (one.name, stage.name, state)
            for one in pipelines
            for stage in one.stages
            for state in stage.states
            if state in BAD
        ]
        errors, failures = self._read(lambda tx: status.bad_ends(tx, bad)) if bad else ([], [])
        return Summary.from_pipelines(pipelines, interrupted=interrupted, errors=errors, failures=Items.of(failures))

    def workers(self) -> Workers:
        """The workers that are alive, and those not yet known to be dead."""
        return Workers.of(self._read(status.workers))

    def show(self, key: str, pipeline: str | None = None) -> ItemDetails:
        """All about one item: its data, where each stage stands, its history, its paid calls and memos."""

        def work(tx: Transaction) -> dict[str, Any]:
            found = show_item.show(tx, key, pipeline)
            which = (tx, key, found["pipeline"])
            return {**found, "calls": resolve.calls(*which), "memos": resolve.memos(*which)}

        return ItemDetails.of(self._read(work))

    def name_of_item(self, number: int) -> tuple[str, str]:
        """The pipeline and the key of the item that has this number in lists, its `id`."""
        return self._read(lambda tx: show_item.name_of_item(tx, number))

    def names_of_items(self, numbers: Sequence[int]) -> dict[int, tuple[str, str]]:
        """The pipeline and the key of each of these items, by number, without those that were deleted."""
        return self._read(lambda tx: show_item.names_of_items(tx, numbers))

    def why(self, key: str, pipeline: str | None = None) -> Explanation:
        """The one thing that keeps an item from running, when that clears, and what can be done."""

        def work(tx: Transaction) -> dict[str, Any]:
            found = Why(tx, key, pipeline).answer()
            may_doubt = found["state"] in (*BAD, State.CANCELLED, State.ON_HOLD)
            return {**found, "memos": resolve.memos(tx, key, found["pipeline"]) if may_doubt else []}

        return Explanation.of(self._read(work))

    def history(self, key: str, pipeline: str | None = None) -> History:
        """All that happened to an item, oldest first."""
        return self.show(key, pipeline).history

    def items(
        self,
        *,
        pipeline: str | None = None,
        stage: str | None = None,
        state: str | Sequence[str] | None = None,
        key: Patterns = None,
        error: str | None = None,
        group: str | None = None,
        attempts: int | None = None,
        version: str | None = None,
        cost: Amount | None = None,
        since: datetime | None = None,
        until: datetime | None = None,
        after: int | str = 0,
        most: int = 100,
    ) -> Items:
        """A page of items; with a stage, a state (or several), an error or a group of errors, of stages of items. The next page
        is after its `cursor`.

        `attempts` and `cost` are the least, `version` is that of the result, and `since` and `until` are when it last changed.
        These, and `error`, look through a part of what the other filters mean, and so does any filter whose matches are rare:
        `looked_at` says how much, and what is found after the `cursor` is on the next page, which may be empty."""
        which = read_filter(pipeline=pipeline, stage=stage, states=several(state), key=key, error=error, group=group)
        narrowed = Narrowed(
            attempts,
            version,
            None if cost is None else micros(cost, what="cost"),
            _begin(since),
            None if until is None else micros_since_1970(until, what="until"),
        )
        return Items.page(*self._read(lambda tx: listed_items(tx, which, narrowed, after=after, most=most)))

    def results(
        self,
        pipeline: str,
        stage: str | None = None,
        *,
        columns: str | Iterable[str] | None = None,
        state: str | Sequence[str] | None = None,
        key: Patterns = None,
        error: str | None = None,
        group: str | None = None,
        older_than: Duration | None = None,
        since: str | None = None,
    ) -> Results[Any]:
        """The results of a pipeline's items, to iterate over, as a data frame or as a file: those that are done, unless states,
        an error or a group of errors say otherwise; with `since`, the cursor of an earlier export, those written after it.
        `columns` are those of frames and files."""
        which = read_filter(
            pipeline=pipeline,
            stage=stage,
            states=several(state),
            key=key,
            error=error,
            group=group,
            older_than=older_than,
        )
        stages = [one for spec in self.pipelines if spec.name == pipeline for one in spec.stages]
        return Results(self.scan, which, columns, since, stages)

    def errors(
        self, *, pipeline: str | None = None, stage: str | None = None, since: datetime | None = None, most: int = 50
    ) -> ErrorGroups:
        """Failures grouped by cause, the most frequent first: how many attempts, at which stages, when first and last, what was
        spent in them, and how many items stand failed now."""
        begin = _begin(since)
        return ErrorGroups.of(
            self._read(lambda tx: error_groups.errors(tx, pipeline=pipeline, stage=stage, since=begin, most=most))
        )

    def events(
        self,
        *,
        event: str | None = None,
        key: str | None = None,
        pipeline: str | None = None,
        since: datetime | None = None,
        after: int | None = None,
        most: int = 100,
    ) -> Events:
        """What happened, oldest first: from the event with the number `after` on, or else the newest."""
        begin = _begin(since)

        def work(tx: Transaction) -> list[dict[str, Any]]:
            item = show_item.find_item(tx, key, pipeline)["id"] if key is not None else None
            return events.events(tx, event=event, item=item, pipeline=pipeline, since=begin, after=after, most=most)

        return Events.of(self._read(work))

    def newest_events(
        self,
        *,
        event: str | None = None,
        key: str | None = None,
        pipeline: str | None = None,
        stage: str | None = None,
        since: datetime | None = None,
        after: str = "",
        most: int = 100,
    ) -> EventPage:
        """What happened, newest first, a page at a time: the next one is after its `cursor`. A page looks through a bounded
        part of the log, so it may have few events of a rare sort, or none, and still have a next page."""
        begin = _begin(since)

        def work(tx: Transaction) -> dict[str, Any]:
            item = show_item.find_item(tx, key, pipeline)["id"] if key is not None else None
            which: dict[str, Any] = {"event": event, "item": item, "pipeline": pipeline, "stage": stage}
            return event_pages.newest_events(tx, **which, since=begin, after=after, most=most)

        return EventPage.of(self._read(work))

    def audit(
        self,
        *,
        by: str | None = None,
        verb: str | None = None,
        since: datetime | None = None,
        after: str = "",
        most: int = 100,
    ) -> AuditPage:
        """Who did what, when and why, newest first, a page at a time: the next one is after its `cursor`. What was done to many
        items at once is one entry."""
        begin = _begin(since)
        codec.require_storable(by=by, verb=verb)
        return AuditPage.of(
            self._read(lambda tx: audit.audit(tx, by=by, verb=verb, since=begin, after=after, most=most))
        )

    def alert_status(self, *, most: int = 100) -> AlertStatus:
        """The alert rules that workers have watched events for; and notifications, those that wait and those that ended."""
        return AlertStatus.of(self._read(lambda tx: alert_status.alert_status(tx, most)))

    def sources(self) -> Sources:
        """Every source: when it was and will be looked at, what that look found, and what went wrong."""
        return Sources.of(self._read(poll_sources.sources))

    def count_events(
        self, *, event: str | None = None, pipeline: str | None = None, since: datetime | None = None
    ) -> EventCounts:
        """How many events there are of each name; `more` says where there are more than were counted."""
        begin = _begin(since)
        return EventCounts.of(
            self._read(lambda tx: events.count_events(tx, event=event, pipeline=pipeline, since=begin))
        )

    def event(self, name: str, /, *, key: str | None = None, pipeline: str | None = None, **facts: Any) -> None:
        """Put a fact into the log, of an item, of a pipeline or of neither, under a name that begins with `user.`. In a
        handler, `ctx.event` does so with the end of the attempt."""
        event = UserEvent.read(name, facts)

        def work(tx: Transaction) -> None:
            item = None if key is None else show_item.find_item(tx, key, pipeline)
            record_user_event(tx, event, pipeline=pipeline, item=item)

        with self._lock:
            self.store.write(work)

    def blob(self, value: Any) -> Blob:
        """Content that a handler has kept, by its reference as it is found in a result: `app.blob(value).read()`."""
        return self._blobs.blob(value)

    @property
    def has_blobs(self) -> bool:
        """Whether there is a place with content that handlers have kept, as far as this app knows."""
        return self._blobs.is_used

    @property
    def _blobs(self) -> Blobs:
        if self._opened_blobs is None:
            # On a connection of its own, also within a scan: no other question waits for it.
            with self.scan() as store:
                identity = store.read(collect_blobs.store_identity)
            self._opened_blobs = open_blobs(self.blobs_at, self.url, identity)
        return self._opened_blobs

    def check(self, *, progress: Callable[[str, int], None] | None = None) -> list[str]:
        """What must never be, and is; an empty list if all is well. `progress` gets the table that is read, and how far."""
        with self.scan() as store:
            return check(store, progress, self._blobs)

    def repair(self, *, by: str = "", reason: str = "") -> list[str]:
        """Set aside rows that belong to nothing, correct counts by state and by version, and rebuild sums of money that differ
        from the ledger, while work goes on; return what was wrong. A damaged database is left alone."""
        with self.scan() as reader:
            if reader.integrity() != "ok":
                return []
            found = reader.read(reconcile_money.find)
            with self._lock:
                repaired = stray_rows.repair(reader, self.store) + recount.repair(reader, self.store)
        with self._lock:
            for day in found.steps:
                step = partial(reconcile_money.repair, day=day, old_at=found.old_at, who=Who(by, reason))
                repaired += self.store.write(step, exclusive=True)
        return repaired

    def doctor(self) -> Diagnosis:
        """Facts about the installation, the database and the workers, for a person who looks for trouble."""
        here = {"holdfast": VERSION, "python": platform.python_version(), "system": platform.platform()}
        with self.scan() as store:
            found, lines = store.read(lambda tx: (status.workers(tx), findings(tx)))
            facts = store.facts()
            lines += findings_in_facts(facts)
            return Diagnosis(here, facts, store.cannot_write(), store.schema_version(), Workers.of(found), tuple(lines))

    def costs(
        self,
        by: str | Sequence[str] = ("pipeline", "stage"),
        *,
        pipeline: str | None = None,
        since: datetime | None = None,
    ) -> Costs:
        """What was spent, summed by pipeline, stage, item, resource, model or day: by one of them, or by several."""
        begin, by = _begin(since), (by,) if isinstance(by, str) else by
        return Costs.summed(by, self._read(lambda tx: costs.costs(tx, tuple(by), pipeline=pipeline, since=begin)))

    def gauges(self) -> tuple[Sample, ...]:
        """What is true of the whole store now, as gauges for monitoring."""
        return tuple(as_samples({**self._read(gauges.gauges), "store": self._store.kind}))

    def throughput(self, pipeline: str | None = None, *, stage: str | None = None, last: Duration = "1h") -> Throughput:
        """How many attempts ended in the last hour, or up to two weeks, how, and how long they took, by stage and over time."""
        span = min(seconds(last, what="last") / 60, throughput_by_minute.KEPT_MINUTES)
        whole = max(1, math.ceil(span))
        return Throughput.of(self._read(lambda tx: throughput_by_minute.throughput(tx, pipeline, stage, whole)))

    def matrix(self, pipeline: str, *, rows: int = 100, on_step: Callable[[float], None] | None = None) -> Matrix:
        """How many items are in which state at which stage, in rows of items that were added one after another. It reads the
        whole pipeline, in short transactions; `on_step` is called between two of them, with the share that is counted."""
        with self.scan() as store:
            return Matrix.of(matrix.matrix(store, pipeline, rows, on_step))

    def memos(self, key: str, pipeline: str | None = None) -> Memos:
        """What the unfinished stages of an item have recorded so far, and what is in doubt."""
        return self.show(key, pipeline).memos

    def calls(self, key: str, pipeline: str | None = None) -> Ledger:
        """The paid calls of an item, oldest first, with what each has cost or may have cost."""
        return Ledger.of(self._read(lambda tx: resolve.calls(tx, key, pipeline)))

    def plan(
        self,
        pipeline: str,
        *,
        stage: str | None = None,
        key: str | None = None,
        stale_only: bool = True,
        fast: bool = False,
        budget: Amount | None = None,
        on_walk: plan_and_reprocess.OnWalk | None = None,
    ) -> Plan:
        """What a `reprocess` with the same words would do, cost and take, from recorded history. Where every item has to be
        looked at, `on_walk` is called with the reason, and now and then with how many were. A
        budget limits how many items would begin (`begins`), and no other number."""
        codec.require_storable(pipeline=pipeline, stage=stage, key=key)
        most = None if budget is None else micros(budget, what="budget")
        with self.scan() as store:
            forecasts = plan_and_reprocess.plan(
                store,
                pipeline,
                stage=stage,
                key=key,
                stale_only=stale_only,
                fast=fast,
                budget=most,
                priced=self._priced(pipeline),
                on_walk=on_walk,
                today=self._today,
            )
        return Plan.from_forecasts(forecasts, self._outdated_workers(pipeline))

    def outdated_workers(self, pipeline: str) -> dict[str, tuple[OutdatedWorker, ...]]:
        """By stage: the living workers that have another version of its code than these pipelines, or else the store, say."""
        found = self._outdated_workers(pipeline)
        return {name: tuple(OutdatedWorker(*one) for one in workers) for name, workers in found.items() if workers}

    def _outdated_workers(self, pipeline: str) -> dict[str, list[Outdated]]:
        return self._read(
            lambda tx: {row.name: outdated_workers(tx, row) for row in self._today(tx).of_pipeline(pipeline)}
        )

    # A person's acts ----------------------------------------------------------------------------------------------

    # `request` is an id of the caller's choice, for those who may ask twice and do not wait, such as a web page. What is asked
    # for twice under one id is begun once; `continue_action`, or a worker after a while, does the rest. A dry run then counts
    # up to 10,000, and its `more` says whether there is more. `previewed` is the number that a dry run has shown to
    # the person who confirmed it; the action then says how much of that had changed meanwhile.

    def retry(
        self,
        /,
        *,
        by: str = "",
        reason: str = "",
        dry_run: bool = False,
        request: str | None = None,
        previewed: int | None = None,
        **which: Any,
    ) -> ActionCounts:
        """Send stages back to pending with all their attempts. Filters: pipeline, stage, states, key, error,
        group, older_than."""
        meant = read_filter(**which)
        if means_all_on_hold(meant) and not dry_run:
            with self._lock:
                self.store.write(lambda tx: tx.run("end_hold_walks", stages=stages_of(tx, meant)))
        return self._act(RetryStages(meant), Who(by, reason), dry_run, request, previewed)

    def cancel(
        self,
        /,
        *,
        by: str = "",
        reason: str = "",
        dry_run: bool = False,
        request: str | None = None,
        previewed: int | None = None,
        **which: Any,
    ) -> ActionCounts:
        """Set open stages aside. The same filters."""
        return self._act(CancelStages(read_filter(**which)), Who(by, reason), dry_run, request, previewed)

    def forget(
        self,
        /,
        *,
        memo: str | None = None,
        undo: bool = False,
        by: str = "",
        reason: str = "",
        dry_run: bool = False,
        request: str | None = None,
        previewed: int | None = None,
        **which: Any,
    ) -> ActionCounts:
        """Reject recorded answers of paid calls, so that the next attempt calls again; with `undo`, take that back. Filters:
        pipeline, stage, key, error, group, older_than. Returns how many at which stage."""
        codec.require_storable(memo=memo)
        kind = (Restore if undo else Forget)(read_filter(**which), memo)
        return self._act(kind, Who(by, reason), dry_run, request, previewed)

    def delete(
        self,
        /,
        *,
        by: str = "",
        reason: str = "",
        dry_run: bool = False,
        request: str | None = None,
        previewed: int | None = None,
        **which: Any,
    ) -> ActionCounts:
        """Remove items for good, with data, results, memos, history and children that belong to no other; what they have cost
        stays, as amounts. Filters: pipeline, key, stage, states, error, group. Returns how many of which pipeline; a dry run
        does not count children."""
        return self._act(Delete(read_filter(**which)), Who(by, reason), dry_run, request, previewed)

    def _act(
        self, kind: ActionKind, who: Who, dry_run: bool, request: str | None, previewed: int | None = None
    ) -> ActionCounts:
        codec.require_storable(request=request)
        if dry_run:
            with self.scan() as store:
                return actions.count(store, kind, None if request is None else actions.PREVIEWED)
        with self._lock:
            if request is not None:
                return actions.begin_once(self.store, kind, who, request, previewed)
            return actions.act(self.store, kind, who, previewed)

    def actions(self, *, only_open: bool = False, after: int | None = None, most: int = 100) -> ActionList:
        """What was done to many items at once, newest first: what was asked for, by whom and why, what it was going to do, and
        what it has done. The next page is after the id of the last one."""
        before = {} if after is None else {"before": after}
        return ActionList.of(self._read(lambda tx: actions.actions(tx, only_open=only_open, most=most, **before)))

    def action(self, number: int, *, after: str = "", most: int = 100) -> ActionDetails:
        """One of them, with a page of what it did to which item; the next page is after its `cursor`."""
        return ActionDetails.of(self._read(lambda tx: actions.action(tx, number, after=after, most=most)))

    def continue_action(self, number: int) -> ActionCounts:
        """Go on with an open action until it is done; return what it has done in all."""
        with self._lock:
            return actions.drive(self.store, number)

    def stop_action(self, number: int, *, by: str = "", reason: str = "") -> None:
        """End an open action where it stands; what it has done stays done."""
        with self._lock:
            if not self.store.write(lambda tx: actions.stop(tx, number, Who(by, reason))):
                raise UsageError(f"action {number} is not open: it is {self.action(number, most=1).state}")

    def undo_action(
        self,
        number: int,
        *,
        by: str = "",
        reason: str = "",
        dry_run: bool = False,
        request: str | None = None,
        previewed: int | None = None,
    ) -> ActionCounts:
        """Move back what a cancel, a retry, a reprocess or a forget has moved, as far as it has not moved on since. It is an
        action of its own."""
        kind = self._read(lambda tx: actions.undoing(tx, number))
        return self._act(kind, Who(by, reason), dry_run, request, previewed)

    def pause(
        self, name: str, *, until: Duration | None = None, reason: str = "", by: str = "", resource: bool = False
    ) -> None:
        """Let nothing more of a pipeline, or of what uses a resource, begin: for a length of time, or until it is resumed."""
        length = None if until is None else microseconds(seconds(until, what="until"))
        who = Who(by, reason)
        with self._lock:
            self.store.write(
                lambda tx: pausing.pause(tx, name, who, None if length is None else tx.now + length, resource=resource),
                exclusive=True,
            )

    def resume(self, name: str, *, reason: str = "", by: str = "", resource: bool = False) -> bool:
        """Let it go on; False if nothing was in the way."""
        with self._lock:
            return self.store.write(
                lambda tx: pausing.resume(tx, name, Who(by, reason), resource=resource), exclusive=True
            )

    def tune(self, pipeline: str, changes: Mapping[str, Any], *, reason: str = "", by: str = "") -> dict[str, Any]:
        """Change limits and guards while work goes on; return what is in force for these keys."""
        with self._lock:
            self.register()
            return self.store.write(lambda tx: tuning.tune(tx, pipeline, changes, Who(by, reason)), exclusive=True)

    def request_look(self, pipeline: str, source: str, *, reason: str = "", by: str = "") -> bool:
        """Have the next worker that has this source look at it now; False if it was due already, or is being looked at."""
        with self._lock:
            return self.store.write(lambda tx: request_look(tx, pipeline, source, Who(by, reason)))

    def limits(self) -> ResourceLimits:
        """Every resource: what is allowed, what is used, and what stands in the way."""
        return ResourceLimits.of(self._read(limits.limits))

    def reprocess(
        self,
        pipeline: str,
        *,
        stage: str | None = None,
        key: str | None = None,
        stale_only: bool = True,
        fast: bool = False,
        budget: Amount | None = None,
        limit: int | None = None,
        by: str = "",
        reason: str = "",
        dry_run: bool = False,
        request: str | None = None,
        previewed: int | None = None,
    ) -> ActionCounts:
        """Run again what is stale, or with `stale_only=False` all that is chosen: items are sent back as long as their forecast
        fits the budget, and no more of them than `limit`; with `fast`, only work that is expected to cost nothing and to take
        no more than five seconds for an item. Returns how many at which stage."""
        codec.require_storable(pipeline=pipeline, stage=stage, key=key)
        most = None if budget is None else micros(budget, what="budget")
        with self._lock:
            self.register()
        only_fast: dict[str, Any] = {"fast": True, "priced": self._priced(pipeline)} if fast else {}
        kind = Reprocess(pipeline, stage, key, stale_only, most, limit, **only_fast)
        return self._act(kind, Who(by, reason), dry_run, request, previewed)

    def _priced(self, pipeline: str) -> tuple[str, ...]:
        """The stages that declare an expected cost, whatever they have cost before."""
        specs = [spec for spec in self.pipelines if spec.name == pipeline]
        return tuple(stage.name for spec in specs for stage in spec.stages if stage.estimate)

    def accept(
        self,
        pipeline: str,
        *,
        stage: str | None = None,
        key: str | None = None,
        by: str = "",
        reason: str = "",
        dry_run: bool = False,
        request: str | None = None,
    ) -> ActionCounts:
        """Mark results of older versions, and those whose input has changed, as good. Returns how many at which stage."""
        codec.require_storable(pipeline=pipeline, stage=stage, key=key)
        with self._lock:
            self.register()
        return self._act(Accept(pipeline, stage, key), Who(by, reason), dry_run, request)

    def resolve(
        self,
        key: str,
        memo: str,
        *,
        value: Any = UNKNOWN,
        charged: Amount | None = None,
        pipeline: str | None = None,
        by: str = "",
        reason: str = "",
    ) -> str:
        """Say what became of a call in doubt: give its answer; or only what was charged (0 for nothing), and the next attempt
        makes it anew. An answer without an amount cost what was expected. Returns the stage."""
        codec.require_storable(memo=memo)
        decision = read_decision(value, charged)
        with self._lock:
            return self.store.write(lambda tx: resolve.resolve(tx, key, pipeline, memo, decision, Who(by, reason)))

    def resolve_many(
        self,
        /,
        *,
        charged: Amount,
        memo: str | None = None,
        by: str = "",
        reason: str = "",
        dry_run: bool = False,
        request: str | None = None,
        **which: Any,
    ) -> ActionCounts:
        """Say of every call in doubt that is meant what was charged for it (0 for nothing). Filters: pipeline, stage, key,
        older_than. Returns how many at which stage."""
        codec.require_storable(memo=memo)
        kind = Resolve(read_filter(**which), micros(charged, what="charged"), memo)
        return self._act(kind, Who(by, reason), dry_run, request)

    def prune(
        self,
        *,
        events_older_than: Duration | None = None,
        items_older_than: Duration | None = None,
        dry_run: bool = False,
    ) -> dict[str, int]:
        """Forget old events, and items that ended long ago, with everything that belongs to them; and content that was kept
        with `ctx.keep`, once it is a day old and nothing refers to it.

        A dry run only counts, and reads through all events and items for it. Children of items that would go are not
        counted: they go after their parents; nor is content that only these items refer to.
        """
        count = {"events": 0, "items": 0, "blobs": 0}
        with self._lock:
            if events_older_than is not None:
                age = microseconds(seconds(events_older_than, what="events_older_than"))
                if dry_run:
                    count["events"] = self._read(lambda tx: prune.count_events(tx, tx.now - age))
                while not dry_run and (done := self.store.write(lambda tx: prune.prune_events(tx, tx.now - age))):
                    count["events"] += done
            if items_older_than is not None:
                age = microseconds(seconds(items_older_than, what="items_older_than"))
                numbers = sorted({row.pipeline for row in self._read(layout).stages.values()})
                for number in numbers:
                    if dry_run:
                        count["items"] += self._read(lambda tx, n=number: prune.count_items(tx, n, tx.now - age))  # type: ignore[misc]
                        continue
                    while done := self.store.write(lambda tx, n=number: prune.prune_items(tx, n, tx.now - age)):  # type: ignore[misc]
                        count["items"] += done
        with self.scan() as store:
            count["blobs"] = collect_blobs.collect(store, self._blobs, dry_run=dry_run)
        return count

    def _read(self, work: Callable[[Transaction], T]) -> T:
        self._require_tables()
        with self._asking:
            return self._reader.read(work, patience_seconds=5.0)

    @contextmanager
    def answer_within(self, seconds: float) -> Iterator[None]:
        """Questions asked in this block are ended in the database, and raise QuestionTimeout, once so long has passed."""
        self._reader.give_up_at = time.monotonic() + seconds
        try:
            yield
        finally:
            self._reader.give_up_at = None

    @contextmanager
    def scan(self) -> Iterator[Store]:
        """A connection for a question that reads much: other questions do not wait for it."""
        self._require_tables()
        store = self._reader.another()
        try:
            yield store
        finally:
            store.close()

    def _require_tables(self) -> None:
        """Refuse tables that do not fit this code. Who opened the store to ask does not bring them up to date."""
        if self._readable:
            return
        if self._create and self.schema_version() < schema.newest():
            with self._lock:
                self.store  # noqa: B018 - makes the tables
        with self._asking:
            self._reader.require_schema()
        self._readable = True

    def _today(self, tx: Transaction) -> Layout:
        """The pipelines as they are once these are registered."""
        return as_registered(tx, self.pipelines)


def _register(
    tx: Transaction, specs: Sequence[PipelineSpec], accepted: Collection[str], said: Declared
) -> dict[str, Registered]:
    """In one transaction: a stage is never there without the limits of its resources."""
    done = {spec.name: register(tx, spec, accepted=spec.name in accepted) for spec in specs}
    declare(tx, said)
    return done


def _begin(since: datetime | None) -> int | None:
    return None if since is None else micros_since_1970(since, what="since")


def read_filter(
    *,
    pipeline: str | None = None,
    stage: str | None = None,
    states: Iterable[str] = (),
    key: Patterns = None,
    error: str | None = None,
    older_than: Duration | None = None,
    group: str | None = None,
) -> Which:
    """A filter as a person writes it."""
    age = None if older_than is None else microseconds(seconds(older_than, what="older_than"))
    keys = several(key)
    for one in keys:
        codec.require_storable(key=one)
    codec.require_storable(error=error, stage=stage, pipeline=pipeline, group=group)
    return Which(pipeline, stage, frozenset(read_state(state) for state in states), keys, error, age, group)


def read_decision(value: Any, charged: Amount | None) -> resolve.Decision:
    """What a person says of a call in doubt."""
    text = None if value is UNKNOWN else codec.encode(value)
    if text is None and charged is None:
        raise UsageError("say what the call returned, or what was charged for it (0 for nothing)")
    return resolve.Decision(text, None if charged is None else micros(charged, what="charged"))


def read_state(state: str) -> State:
    try:
        return State(state)
    except ValueError:
        raise UsageError(f"state {state!r} is unknown; {there_are(state, State)}") from None
