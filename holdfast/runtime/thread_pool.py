"""The thread pool: runs calls of sync handlers in threads that share one queue.

Waking a thread costs more than most short handlers take. Calls known to be quick are therefore bundled, and one thread
runs the whole bundle. If a call turns out to be slow, its bundle is broken up and the pool starts more threads. Calls
that use resources go first: the next free thread takes them. A call that exceeds its timeout is abandoned: a new thread
replaces its thread, and a late result is ignored.
"""

from __future__ import annotations

import queue
import threading
import time
from collections import deque
from collections.abc import Sequence
from typing import Any, Generic

from holdfast.model.log_lines import logger
from holdfast.runtime.call import C, CallOwner, Paces, Runner, abandon, emptied

log = logger("holdfast.runtime")

#: How long a bundle should take.
BUNDLE_SECONDS = 0.005
#: Size of a bundle of quick calls. Quick calls do not wait for anything, so more threads would only compete for the
#: GIL.
QUICK_BUNDLE = 1000
#: If a call runs longer than this, the rest of its bundle moves to other threads.
PATIENCE_SECONDS = 0.01
#: If a call of an unknown kind takes longer than this, more threads are worthwhile.
SLOW_SECONDS = 0.002
#: If the pool has abandoned more threads than this per working thread, the process is unfit.
MOST_LOST = 4


class ThreadPool(Generic[C]):
    """Runs calls of sync handlers."""

    def __init__(self, runner: Runner[C, Any], owner: CallOwner[C], paces: Paces) -> None:
        self._runner = runner
        self._owner = owner
        self._paces = paces
        self._bundles: queue.SimpleQueue[deque[C] | None] = queue.SimpleQueue()
        #: Calls that go first. For each bundle of them, an empty bundle in the queue wakes a thread.
        self._first: deque[C] = deque()
        self._running: dict[int, tuple[C, deque[C]]] = {}
        #: How many threads there are, and may be: as many as the owner wants, until the system refuses one.
        self._threads, self._room = 0, owner.width
        self._lost = 0
        self._lock = threading.Lock()
        self._ended = threading.Event()

    @property
    def unfit(self) -> bool:
        """Whether the process should be replaced: too many handlers hang, or the system refuses threads."""
        return self._lost > MOST_LOST * self._owner.width or self._room == 0

    def submit(self, calls: Sequence[C]) -> None:
        """Run these calls as soon as a thread is free."""
        for bundle in self._bundled(calls):
            if bundle[0].goes_first:
                self._first.extend(bundle)
                bundle = deque()
            self._bundles.put(bundle)
        # Calls that may be quick end before another thread would start. If they do not, `look` finds that calls are
        # waiting.
        one_of_each = {call.kind: call for call in calls}.values()
        quick = all(self._may_be_quick(call) for call in one_of_each)
        if quick:
            with self._lock:
                self._start_threads(1 - self._threads)
        else:
            self._grow()

    def withdraw(self) -> list[C]:
        """Take back the calls that have not started."""
        calls = emptied(self._first)
        while True:
            try:
                bundle = self._bundles.get_nowait()
            except queue.Empty:
                break
            if bundle is not None:
                calls += emptied(bundle)
        for _, bundle in list(self._running.values()):
            calls += emptied(bundle)
        return calls

    def look(self, now: float) -> None:
        """Move calls that wait behind a slow one to other threads, and abandon calls that exceeded their timeout."""
        for thread, (call, bundle) in list(self._running.items()):
            took = now - call.started if call.started else 0.0
            slow = took > PATIENCE_SECONDS or call.is_overdue(now)
            if slow:
                for one in emptied(bundle):
                    self._bundles.put(deque((one,)))
                if call.goes_first and self._bundles.empty():
                    # More calls that go first may have come in the same bundle.
                    for _ in range(len(self._first)):
                        self._bundles.put(deque())
            if not self._bundles.empty() and (slow or not self._may_be_quick(call)):
                self._grow()
            self._look_at(thread, call, now)

    def stop(self) -> None:
        """End each thread as soon as it has nothing to run."""
        for _ in range(self._threads):
            self._bundles.put(None)

    def join(self, seconds: float) -> None:
        """Wait for the threads to end, except those busy with a handler."""
        give_up_at = time.monotonic() + seconds
        while self._threads > len(self._running) and (left := give_up_at - time.monotonic()) > 0:
            self._ended.wait(min(left, 0.1))
            self._ended.clear()

    def _bundled(self, calls: Sequence[C]) -> list[deque[C]]:
        bundles: list[deque[C]] = []
        room = 0.0
        kind, usual = 0, BUNDLE_SECONDS
        for call in calls:
            new = call.kind != kind
            if new:
                kind, usual = call.kind, self._usual(call)
            cost = usual * call.size
            if cost > room or not bundles or (new and call.goes_first != bundles[-1][0].goes_first):
                bundles.append(deque())
                room = BUNDLE_SECONDS
            bundles[-1].append(call)
            room -= cost
        return bundles

    def _may_be_quick(self, call: C) -> bool:
        """Whether calls like this one are not known to be slow. A batch may be slow even if each item is quick."""
        return call.is_single and self._paces.may_be_quick(call.kind)

    def _usual(self, call: C) -> float:
        """How many seconds of a bundle to reserve per item of this call."""
        if call.is_single and self._paces.is_quick(call.kind):
            return BUNDLE_SECONDS / QUICK_BUNDLE
        pace = self._paces.pace(call.kind)
        return BUNDLE_SECONDS if pace is None else pace

    def _look_at(self, thread: int, call: C, now: float) -> None:
        """Abandon a call that exceeded its timeout; another thread replaces the one that runs it."""
        if not call.is_overdue(now) or not abandon(call):
            return
        with self._lock:
            self._running.pop(thread, None)
            self._threads -= 1
            self._lost += 1
            self._start_threads(1)
        log.warning(
            '%s: ran longer than %.0f s and cannot be stopped in a thread; it is abandoned (isolate="process" would end it)',
            call.label,
            call.timeout_seconds,
        )
        self._owner.report(call, self._runner.raised(call, call.timeout_error()))

    def _serve(self) -> None:
        try:
            self._run_bundles()
        except BaseException as error:
            # Raised in this thread from outside, and not inside a handler. There may be no other thread.
            log.error("a thread for handlers was ended by %s; another takes its place", type(error).__name__)
            left = self._running.pop(threading.get_ident(), None)
            with self._lock:
                self._threads -= 1
                self._start_threads(1)
            if left is not None:
                call, bundle = left
                self._bundles.put(bundle)
                if call.end():
                    self._owner.report(call, self._runner.raised(call, error))

    def _run_bundles(self) -> None:
        me = threading.get_ident()
        report, may_start = self._owner.report, self._owner.may_start
        while True:
            if self._bundles.empty() and not self._others_follow():
                self._owner.out_of_work(self._is_free)
            bundle = self._bundles.get()
            if bundle is None:
                with self._lock:
                    self._threads -= 1
                self._ended.set()
                return
            while True:
                try:
                    call = (self._first or bundle).popleft()
                except IndexError:
                    if bundle:
                        continue  # another thread took the call
                    break
                self._running[me] = (call, bundle)
                if not may_start(call):
                    self._running.pop(me, None)
                    continue
                try:
                    finished = self._runner.run(call, time.monotonic)
                except BaseException as error:
                    finished = self._runner.raised(call, error)
                if call.end():
                    self._running.pop(me, None)
                    report(call, finished)
                    if not self._bundles.empty():
                        self._grow_behind(call)
                elif call.abandoned:
                    with self._lock:
                        self._lost -= 1
                    return  # another thread has replaced this one
                else:
                    self._running.pop(me, None)

    def _grow_behind(self, call: C) -> None:
        """Start more threads if this call, which has just ended while others wait, was slow."""
        if not self._paces.is_quick(call.kind) and time.monotonic() - call.started > SLOW_SECONDS:
            self._grow()

    def _grow(self) -> None:
        """Start a thread for each waiting bundle, up to the limit."""
        with self._lock:
            self._start_threads(self._bundles.qsize())

    def _start_threads(self, wanted: int) -> None:
        """Start this many more threads, up to the limit. The caller holds the lock."""
        for _ in range(min(self._room - self._threads, wanted)):
            try:
                threading.Thread(target=self._serve, name="holdfast-handler", daemon=True).start()
            except (RuntimeError, MemoryError) as error:
                self._room = self._threads
                log.warning("only %d threads for handlers could be started: %s", self._room, error)
                return
            self._threads += 1

    def _others_follow(self) -> bool:
        """Whether other threads are running quick calls: the last of them to run out of work reports it."""
        kinds = [call.kind for call, _ in list(self._running.values()) if not call.is_over]
        return bool(kinds) and all(map(self._paces.is_quick, kinds))

    def _is_free(self) -> bool:
        """Whether this thread may do other work: no other thread is running a call, and no call is waiting."""
        return not self._running and self._bundles.empty()
