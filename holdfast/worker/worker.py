"""The worker: creates its parts and runs them from start to stop. The package docstring says which thread does what."""

from __future__ import annotations

import math
import os
import socket
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any

from holdfast.blobs import Blobs, NoBlobs
from holdfast.blobs.reference import references_in
from holdfast.engine.clock_jumps import clock_behind
from holdfast.engine.finish_leases import FinishedAttempt
from holdfast.engine.layout import layout
from holdfast.engine.memos import MemoWrite
from holdfast.engine.workers import Identity
from holdfast.errors import HoldfastError
from holdfast.model.durations import spoken
from holdfast.model.guard_conditions import Guards
from holdfast.model.layout import Layout
from holdfast.model.log_lines import logger, printable
from holdfast.model.stage import PipelineSpec
from holdfast.model.states import Alone
from holdfast.runtime import process_identity as machine
from holdfast.runtime.async_caller import AsyncCaller
from holdfast.runtime.async_pool import AsyncPool
from holdfast.runtime.call import CallOwner
from holdfast.runtime.fork_server import ForkServer
from holdfast.runtime.process_pool import ProcessPool
from holdfast.runtime.python_settings import set_for_work
from holdfast.runtime.services import MakeService, Scheduler, ServiceContext, ServiceThread
from holdfast.runtime.thread_pool import ThreadPool
from holdfast.signals import caught
from holdfast.store import Limits, Store
from holdfast.store.store import new_identity
from holdfast.telemetry.health import Health
from holdfast.telemetry.log_context import name_attempts
from holdfast.telemetry.metrics import Metrics
from holdfast.telemetry.tracing import tracing
from holdfast.version import VERSION
from holdfast.worker.attempt_spans import AttemptSpans, TracedCommitter, TracedRunner
from holdfast.worker.background import upkeep
from holdfast.worker.background.guards import GuardWatch
from holdfast.worker.background.heartbeat import Heartbeat, Listening
from holdfast.worker.background.throughput import MinuteCounts, MinuteWriter
from holdfast.worker.call import StageCall, offer_of, versions_of
from holdfast.worker.commit.claim_planner import ClaimPlanner
from holdfast.worker.commit.committer import Committer
from holdfast.worker.commit.prefetch import InHand
from holdfast.worker.context_reads import ContextReads
from holdfast.worker.health import health_of
from holdfast.worker.isolated import StageChild, StageConversation
from holdfast.worker.runner import StageRunner
from holdfast.worker.settings import Settings

log = logger("holdfast.worker")

#: The longest name of a worker.
LONGEST_NAME = 200

_ISOLATED = int(Alone.ISOLATED)

#: After this many late calls in a row, one starts all the same.
MOST_LATE = 10

#: How often running calls are checked for timeouts and delayed bundles.
LOOK_SECONDS = 0.02
#: If the database has not answered for this long, the connection counts as lost, whatever the network says. The
#: committer waits for a whole lease, because its statements may wait for a lock.
ANSWER_SECONDS = 5.0
#: How long a stop waits for the database while it hands leases back.
FAREWELL_SECONDS = 5.0


class Worker(ContextReads):
    """One worker process. `run` blocks until the worker is stopped or, on request, until no work is left."""

    def __init__(
        self,
        store: Store,
        pipelines: Sequence[PipelineSpec],
        settings: Settings | None = None,
        services: Sequence[MakeService] = (),
        blobs: Blobs | None = None,
        metrics: Metrics | None = None,
    ) -> None:
        self.settings = settings or Settings()
        self._store = store
        #: What it counts for monitoring, if anybody wants to know. Its other connections are made from this store.
        self.metrics = metrics
        store.on_commit = None if metrics is None else metrics.committed
        self._specs = {spec.name: spec for spec in pipelines}
        self._make_services = tuple(services)
        self.blobs = blobs or NoBlobs()
        self._stop_requests = 0
        self.worker_name = ""
        self.spans = tracing()
        #: The signal that stopped it, if one did.
        self.stopped_by: int | None = None
        self._wake_up = threading.Event()
        # A frozen worker must not block others for longer than its leases last.
        idle = max(1.0, self.settings.lease_seconds)
        self._limits = Limits(ANSWER_SECONDS, idle)
        self._writer_limits = Limits(max(ANSWER_SECONDS, self.settings.lease_seconds), idle)
        super().__init__(store.another(self._limits), store.read(layout))
        self._offer = offer_of(pipelines, self._layout, self.settings.stages)
        if metrics is not None:
            metrics.begin((pipeline, spec.name) for pipeline, spec in self._offer.values())
        self._progress: dict[tuple[int, str], dict[str, Any]] = {}
        self._late = 0
        self._looked_at = time.monotonic()
        self._parts_made = False
        self._caller: AsyncCaller | None = None

    # What a context needs from the process ------------------------------------------------------------------------

    @property
    def stopping(self) -> bool:
        return self._stop_requests > 0 or not self._heartbeat.trusted

    def pipeline(self, name: str) -> PipelineSpec | None:
        return self._specs.get(name)

    def note_progress(self, item: int, stage: str, note: dict[str, Any]) -> None:
        self._progress[item, stage] = note

    def remember(self, memos: Sequence[MemoWrite]) -> Future[None]:
        for memo in memos:
            # Nothing is refused here: the answer may be paid for.
            self.blobs.hold(references_in(memo.value or ""))
        return self._committer.remember(memos)

    # Start and stop -----------------------------------------------------------------------------------------------

    def run(
        self,
        *,
        until_drained: bool = False,
        signals: bool = True,
        on_tick: Callable[[], None] | None = None,
        tick_seconds: float = 0.5,
        on_signal: Callable[[], None] | None = None,
        caller: AsyncCaller | None = None,
    ) -> None:
        """Work until stopped or, with `until_drained`, until no work is left in this worker or any other.

        `on_tick` is called in this thread before the first claim, and then periodically; `on_signal` when the first signal
        requests a stop. If an async `caller` waits for it, async handlers run on the caller's event loop. Raises
        StoreBroken if the database becomes unusable.
        """
        self._caller = caller
        if caller is not None:
            caller.on_stop(self.stop)

        def asked(number: int) -> None:
            # Only count: the interrupted code may hold the lock of the event.
            self._stop_requests += 1
            if self.stopped_by is None:
                self.stopped_by = number
                if on_signal is not None:
                    on_signal()

        with caught(asked, signals), set_for_work(), name_attempts():
            try:
                self._live(until_drained, on_tick, tick_seconds)
            finally:
                self._finish()
        if self._committer.broken is not None:
            raise self._committer.broken
        if self._unfit:
            raise HoldfastError("this process is not fit to go on (its log says why): a new one must take over")

    def _live(self, until_drained: bool, on_tick: Callable[[], None] | None, tick_seconds: float) -> None:
        self.start(on_tick)
        next_tick = time.monotonic() + tick_seconds
        while not self._stop_requests and self._committer.broken is None and not self._unfit:
            if until_drained and self._committer.drained.is_set():
                break
            if on_tick is not None and time.monotonic() >= next_tick:
                on_tick()
                next_tick = time.monotonic() + tick_seconds
            self._wait_and_look()

    def stop(self) -> None:
        """Stop claiming and let running handlers end within the grace period. A second call hands everything back at
        once.
        """
        self._stop_requests += 1
        self._wake_up.set()

    def start(self, on_joined: Callable[[], None] | None = None) -> None:
        """Create and start the parts. The fork server comes first, while there is only one thread. `on_joined` is called when
        all is ready and no handler has run, which may do anything to this process.
        """
        if behind := self._store.read(clock_behind):
            log.warning(
                "the clock of this process is %s behind what is in the store: leases do not depend on it, but times that are "
                "shown, and retries that others have asked for, do",
                spoken(behind / 1e6),
            )
        self.worker_name = printable(self.settings.name)[:LONGEST_NAME] or f"{socket.gethostname()}-{os.getpid()}"
        self.spans = tracing()
        self._traced = None if self.spans is None else AttemptSpans(self.spans, self.worker_name)
        # A child must not inherit an open SQLite file: it would trust locks that it does not hold.
        self._store.close()
        self._reader.close()
        server = ForkServer.forked(
            lambda line: StageChild(line, self._offer, lambda: self._store.another(self._writer_limits), self).run()
        )
        self._hand = InHand(self.settings.concurrency)
        writer, poll = self._store.another(self._writer_limits), self.settings.poll_seconds
        self._make_background(writer)
        self._orders = ClaimPlanner(self._offer, self._hand, list(self._specs), self._guard_watch.held, poll)
        promoter = upkeep.Promoter(writer, poll)
        services = upkeep.all_upkeep(
            writer, promoter, self._heartbeat, self._minute_counts, self._hand, self._offer, self.settings
        )
        # The first pass comes after the worker has claimed the work that was waiting when it started, or found none, and at
        # the latest after one poll interval.
        scheduler = Scheduler(services, not_before=time.monotonic() + poll)
        parts = writer, self._heartbeat, self._orders, scheduler, promoter, self._minute_counts, self._start_calls, poll
        self._committer = Committer(*parts) if self._traced is None else TracedCommitter(self._traced, *parts)
        self._make_pools(server)
        self._parts_made = True
        self._heartbeat.join()
        self._heartbeat_thread.start()
        if on_joined is not None:
            on_joined()
        self._committer.start()
        for thread in self._service_threads:
            thread.start()
        log.info("worker %s offers %d stages", self._heartbeat.identity.name, len(self._offer))

    def _make_pools(self, server: ForkServer) -> None:
        """Create the pools that run handlers: child processes, an event loop, threads."""
        traced = self._traced
        runner = StageRunner(self) if traced is None else TracedRunner(self, traced)
        conversation = StageConversation(runner, self, None if traced is None else traced.traceparent)
        report = self._report if traced is None else traced.reported(self._report)
        owner = CallOwner(self.settings.concurrency, report, self._may_start, self._committer.out_of_work)
        self._isolated = ProcessPool(conversation, owner, server)
        events = None if self._caller is None else self._caller.events
        self._async_pool = AsyncPool(runner, owner, events=events, took_back=self._took_back)
        self._threads = ThreadPool(runner, owner, self._hand)
        self._pools = (self._isolated, self._threads, self._async_pool)

    def _make_background(self, writer: Store) -> None:
        """Create what runs in the background, in its own threads."""
        store = self._store.another(self._limits)
        self._minute_counts = MinuteCounts()
        self._heartbeat = Heartbeat(
            store, self._new_identity, versions_of(self._offer), self._facts, self._hand_back_waiting
        )
        listening = Listening(
            store, self._heartbeat, lambda: self._committer.idle, lambda stages: self._committer.news(stages)
        )
        self._heartbeat_thread = ServiceThread(
            [self._heartbeat, listening, MinuteWriter(store, self._minute_counts)],
            on_broken=lambda error: self._committer.fail(error),
        )
        self._guard_watch = GuardWatch(
            lambda: self._guards(writer), lambda: self._committer.news(), on_held=lambda: self._heartbeat.beat_soon()
        )
        self._stopped = threading.Event()
        others = [
            make(ServiceContext(self._store.another(self._limits), lambda: self._heartbeat.identity.id, self._stopped))
            for make in self._make_services
        ]
        self._service_threads = [
            ServiceThread([service], on_found=lambda: self._committer.news(), stopped=self._stopped)
            for service in (self._guard_watch, *others)
        ]

    @property
    def _unfit(self) -> bool:
        return any(pool.unfit for pool in self._pools)

    @property
    def interrupted(self) -> bool:
        """Whether it was asked to stop."""
        return self._stop_requests > 0

    def health(self) -> Health:
        """Whether it gets on, and whether it may start and commit work; for probes, from any thread."""
        if not self._parts_made:
            return Health(True, False, "the worker has not begun")
        return health_of(self._committer, self._heartbeat, self._looked_at, self.settings, self.interrupted)

    def _finish(self) -> None:
        """Give running handlers their grace period, hand back the rest, and deregister."""
        if not self._parts_made:
            return
        committer = self._committer
        self._stopped.set()
        committer.stop_claiming()
        if not committer.broken:
            self._hand_back_waiting()
            give_up_at = time.monotonic() + self.settings.grace_seconds
            while not committer.empty.is_set() and not self._in_a_hurry() and time.monotonic() < give_up_at:
                self._wait_and_look()
            committer.hand_back(list(self._hand.calls))
            self._look()
        committer.stop()
        ended = committer.join(FAREWELL_SECONDS) and not committer.broken
        # Their last passes need a worker that is still registered.
        for thread in self._service_threads:
            if self._in_a_hurry():
                thread.hurry()
            thread.finish()
        for thread in self._service_threads:
            thread.join(self._in_a_hurry)
        # Without a last pass its leases expire, and others take them over.
        self._heartbeat_thread.finish(last_pass=ended)
        self._heartbeat_thread.join()
        for pool in reversed(self._pools):
            pool.stop()
        if self._traced is not None:
            self._traced.close()
        self._reader.close()

    def _in_a_hurry(self) -> bool:
        """Whether it was asked to stop a second time."""
        return self._stop_requests > 1

    # Between the parts --------------------------------------------------------------------------------------------

    def _start_calls(self, calls: list[StageCall]) -> None:
        isolated = [call for call in calls if call.spec.isolate or call.leases[0].alone >= _ISOLATED]
        if isolated:
            start, back = self._orders.set_aside(isolated)
            if back:
                self._committer.hand_back(back)
            self._isolated.submit(start)
            others = set(calls).difference(isolated)
            calls = [call for call in calls if call in others]
        lanes = [call for call in calls if call.spec.is_async]
        threads = [call for call in calls if not call.spec.is_async] if len(lanes) < len(calls) else []
        if lanes:
            self._async_pool.submit(lanes)
        if threads:
            self._threads.submit(threads)

    def _may_start(self, call: StageCall) -> bool:
        """Whether a waiting call may run now: not if it has ended meanwhile, nor if its lease may have expired."""
        if call.is_over:
            return False
        if not self._heartbeat.trusted:
            self._committer.hand_back([call])
            return False
        return call.start_by is None or self._in_time(call, call.start_by)

    def _in_time(self, call: StageCall, start_by: float) -> bool:
        """Whether a rate-limited call may still start. On a machine that is always late, some must."""
        if start_by == math.inf:
            return True
        late = time.monotonic() - start_by
        self._hand.began(call, late=late > 0)
        self._late = self._late + 1 if late > 0 else 0
        if late <= 0:
            return True
        if self._late % MOST_LATE == 0:
            log.warning(
                "work begins %.0f ms too late for the pace it should keep: the machine is too busy", 1000 * late
            )
            return True
        self._committer.hand_back([call])
        return False

    def _took_back(self, call: StageCall) -> bool:
        """Hand back a call whose task was cancelled together with the caller, as at the end of `asyncio.run`."""
        if self._caller is None or not self._caller.is_cancelled:
            return False
        self._committer.hand_back([call])
        return True

    def _report(self, call: StageCall, finished: list[FinishedAttempt]) -> None:
        if self._progress:
            for lease in call.leases:
                self._progress.pop((lease.item, call.spec.name), None)
        # The result contains everything they recorded. Free what the handler was given now, not at the commit.
        call.contexts = ()
        self._committer.report(finished)

    def _wait_and_look(self) -> None:
        self._wake_up.wait(LOOK_SECONDS)
        self._wake_up.clear()
        self._look()

    def _look(self) -> None:
        now = self._looked_at = time.monotonic()
        self._committer.look(now)
        for pool in self._pools:
            pool.look(now)

    def _hand_back_waiting(self) -> None:
        """Hand back what has not started: at a stop, or because other workers take over everything this one held."""
        waiting = [call for pool in self._pools for call in pool.withdraw()]
        self._committer.hand_back(waiting + self._orders.set_aside_now())

    def _new_identity(self) -> Identity:
        lease_us = round(self.settings.lease_seconds * 1e6)
        return Identity(new_identity(), self.worker_name, machine.this_host(), machine.this_process(), lease_us)

    def _facts(self) -> dict[str, Any]:
        done = {str(state): n for state, n in self._committer.done.items() if n}
        progress = list(self._progress.copy().values())[:50]
        facts = {"in_hand": len(self._hand), "done": done, "progress": progress, "holdfast": VERSION}
        if self._committer.last_error is not None:
            facts["last_error"] = self._committer.last_error
        held = self._guard_watch.facts()
        return {**facts, "guards": held} if held else facts

    def _guards(self, store: Store) -> dict[str, Guards]:
        """The current guards of this worker's pipelines."""
        known: Layout | None = store.cache.get("layout")
        rows = known.pipelines.values() if known is not None else ()
        return {row.name: row.guards for row in rows if row.guards and row.name in self._specs}
