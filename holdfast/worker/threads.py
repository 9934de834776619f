"""Sync handlers: threads that take calls from one queue.

Waking a thread costs more than most short handlers, so calls of a stage known to be quick travel in bundles, and one
thread runs them. A bundle whose call turns out to be slow is broken up, and there are more threads. Calls that use
resources do not wait behind the others: the next thread that is free takes them first. A call that outruns its timeout
is given up: its thread gets no more work, another takes its place, and whatever it still says is too late.
"""

from __future__ import annotations

import queue
import threading
import time
from collections import deque
from collections.abc import Sequence

from holdfast.model.logs import logger
from holdfast.runtime.thread_group import Staff
from holdfast.worker.call import Call, MayStart, OutOfWork, Report
from holdfast.worker.commit.in_hand import Hand
from holdfast.worker.runner import Runner

log = logger("holdfast.worker")

#: A bundle is meant to take about this long.
BUNDLE_SECONDS = 0.005
#: Calls that are quick wait for nothing: other threads would only take the interpreter from each other. So many of them
#: are a bundle.
QUICK_BUNDLE = 1000
#: A call that runs longer than this does not keep the rest of its bundle waiting.
PATIENCE_SECONDS = 0.01
#: One that took longer, at a stage of which nothing is known yet, says that other threads are worth having.
SLOW_SECONDS = 0.002
#: Threads given up on, per thread that works; beyond, the process is not fit to go on.
MOST_LOST = 4


class Threads:
    """Runs calls of sync handlers, at most `width` at a time."""

    def __init__(
        self,
        runner: Runner,
        width: int,
        report: Report,
        may_start: MayStart,
        out_of_work: OutOfWork,
        hand: Hand,
    ) -> None:
        self._runner = runner
        self._width = width
        self._report = report
        self._may_start = may_start
        self._out_of_work = out_of_work
        self._hand = hand
        self._bundles: queue.SimpleQueue[deque[Call] | None] = queue.SimpleQueue()
        #: Calls that go first. For each bundle of them there is an empty one in the queue, to wake a thread.
        self._first: deque[Call] = deque()
        self._running: dict[int, tuple[Call, deque[Call]]] = {}
        self._staff = Staff("holdfast-handler", width, self._serve)
        self._lost = 0
        self._lock = threading.Lock()

    @property
    def unfit(self) -> bool:
        """So many handlers hang, or threads are refused, that this process should make room for another."""
        return self._lost > MOST_LOST * self._width or self._staff.impossible

    def submit(self, calls: Sequence[Call]) -> None:
        """Run these as soon as there is a thread."""
        for bundle in self._bundled(calls):
            if bundle[0].goes_first:
                self._first.extend(bundle)
                bundle = deque()
            self._bundles.put(bundle)
        # What may be quick is over before another thread has begun. If it is not, `look` sees that something waits.
        one_of_each = {call.leases[0].stage: call for call in calls}.values()
        quick = all(self._may_be_quick(call) for call in one_of_each)
        if quick:
            with self._lock:
                self._staff.grow(1 - self._staff.count)
        else:
            self._grow()

    def withdraw(self) -> list[Call]:
        """Take back what has not started."""
        calls = _emptied(self._first)
        while True:
            try:
                bundle = self._bundles.get_nowait()
            except queue.Empty:
                break
            if bundle is not None:
                calls += _emptied(bundle)
        for _, bundle in list(self._running.values()):
            calls += _emptied(bundle)
        return calls

    def look(self, now: float) -> None:
        """Let nothing wait behind a slow call; give up calls that outran their timeout."""
        for thread, (call, bundle) in list(self._running.items()):
            took = now - call.started if call.started else 0.0
            limit = call.spec.timeout_seconds
            overdue = limit is not None and took > limit
            slow = took > PATIENCE_SECONDS or overdue
            if slow:
                for one in _emptied(bundle):
                    self._bundles.put(deque((one,)))
                if call.goes_first and self._bundles.empty():
                    # Others may have come in the same bundle.
                    for _ in range(len(self._first)):
                        self._bundles.put(deque())
            if not self._bundles.empty() and (slow or not self._may_be_quick(call)):
                self._grow()
            if overdue:
                # Marked first: a thread that finds its call ended by somebody else must see why.
                call.abandoned = True
                if call.end():
                    self._give_up(thread, call)
                else:
                    call.abandoned = False

    def stop(self) -> None:
        for _ in range(self._staff.count):
            self._bundles.put(None)

    def _bundled(self, calls: Sequence[Call]) -> list[deque[Call]]:
        bundles: list[deque[Call]] = []
        room = 0.0
        stage, usual = 0, BUNDLE_SECONDS
        for call in calls:
            first = call.leases[0]
            new = first.stage != stage
            if new:
                stage, usual = first.stage, self._usual(call)
            cost = BUNDLE_SECONDS if first.alone else usual * len(call.leases)
            if cost > room or not bundles or (new and call.goes_first != bundles[-1][0].goes_first):
                bundles.append(deque())
                room = BUNDLE_SECONDS
            bundles[-1].append(call)
            room -= cost
        return bundles

    def _may_be_quick(self, call: Call) -> bool:
        """Whether calls like this one are not known to be slow. A batch may be, however quick its items are."""
        return call.spec.batch is None and self._hand.may_be_quick(call.leases[0].stage)

    def _usual(self, call: Call) -> float:
        """How much of a bundle an item takes up in calls like this one, in seconds."""
        stage = call.leases[0].stage
        if call.spec.batch is None and self._hand.is_quick(stage):
            return BUNDLE_SECONDS / QUICK_BUNDLE
        pace = self._hand.pace(stage)
        return BUNDLE_SECONDS if pace is None else pace

    def _give_up(self, thread: int, call: Call) -> None:
        call.close()
        with self._lock:
            self._running.pop(thread, None)
            self._staff.count -= 1
            self._lost += 1
            self._staff.grow(1)
        log.warning(
            "item %r, stage %r: ran longer than %.0f s and cannot be stopped in a thread; it is given up "
            '(isolate="process" would end it)',
            call.leases[0].key,
            call.spec.name,
            call.spec.timeout_seconds,
        )
        self._report(call, self._runner.timed_out(call))

    def _serve(self) -> None:
        try:
            self._run_bundles()
        except BaseException as error:
            # Thrown into the thread from outside, and not while a handler ran. There may be no other thread.
            log.error("a thread for handlers was ended by %s; another takes its place", type(error).__name__)
            left = self._running.pop(threading.get_ident(), None)
            with self._lock:
                self._staff.count -= 1
                self._staff.grow(1)
            if left is not None:
                call, bundle = left
                self._bundles.put(bundle)
                if call.end():
                    self._report(call, self._runner.raised(call, error))

    def _run_bundles(self) -> None:
        me = threading.get_ident()
        while True:
            if self._bundles.empty() and not self._others_follow():
                self._out_of_work(self._is_free)
            bundle = self._bundles.get()
            if bundle is None:
                return
            while True:
                try:
                    call = (self._first or bundle).popleft()
                except IndexError:
                    if bundle:
                        continue  # another thread was quicker
                    break
                self._running[me] = (call, bundle)
                if not self._may_start(call):
                    self._running.pop(me, None)
                    continue
                try:
                    finished = self._runner.run(call, time.monotonic)
                except BaseException as error:
                    finished = self._runner.raised(call, error)
                if call.end():
                    self._running.pop(me, None)
                    self._report(call, finished)
                    if not self._bundles.empty():
                        self._grow_behind(call)
                elif call.abandoned:
                    with self._lock:
                        self._lost -= 1
                    return  # another thread has this one's place
                else:
                    self._running.pop(me, None)

    def _grow_behind(self, call: Call) -> None:
        """Something waits, and this call has just ended: more threads, if it was slow."""
        if not self._hand.is_quick(call.leases[0].stage) and time.monotonic() - call.started > SLOW_SECONDS:
            self._grow()

    def _grow(self) -> None:
        """A thread for everything that waits, as far as there is room."""
        with self._lock:
            self._staff.grow(self._bundles.qsize())

    def _others_follow(self) -> bool:
        """Whether other threads run quick calls, and will be out of work in a moment: the last of them says so."""
        stages = [call.leases[0].stage for call, _ in list(self._running.values()) if not call.is_over]
        return bool(stages) and all(self._hand.is_quick(stage) for stage in stages)

    def _is_free(self) -> bool:
        """Whether no other thread is at work, which could go on while one does something else, and nothing waits for one."""
        return not self._running and self._bundles.empty()


def _emptied(bundle: deque[Call]) -> list[Call]:
    calls = []
    while True:
        try:
            calls.append(bundle.popleft())
        except IndexError:
            return calls
