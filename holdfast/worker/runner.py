"""Runs one stage for one item or one batch, with a sync or async handler, and returns how each attempt ended."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Callable
from typing import Any

from holdfast import points
from holdfast.blobs.reference import found_at
from holdfast.engine.claim import Lease
from holdfast.engine.finish_leases import FinishedAttempt
from holdfast.errors import UsageError, ValueMismatch
from holdfast.model.item import Item
from holdfast.runtime.process_identity import Lineage
from holdfast.telemetry.log_context import attempt_of_task
from holdfast.worker import undeclared_reads as undeclared
from holdfast.worker.batch_context import BatchContext
from holdfast.worker.call import StageCall
from holdfast.worker.context import Context
from holdfast.worker.handler_environment import Surroundings
from holdfast.worker.handler_outcome import HandlerOutcome

#: Every step comes through here: these are looked up once, and what is hardly ever needed is asked for without a call.
_begin, _end = attempt_of_task.set, attempt_of_task.reset


class StageRunner(HandlerOutcome):
    """Turns calls into finished attempts."""

    def __init__(self, around: Surroundings) -> None:
        super().__init__(around.blobs)
        self._around = around
        self._forks = Lineage.forks

    def run(self, call: StageCall, clock: Callable[[], float]) -> list[FinishedAttempt]:
        """Run a sync handler to its end, whatever it raises or returns."""
        call.started = clock()
        if points.listener is not None:
            points.reach("run.before", call)
        outside = None
        try:
            subject, ctx = self._open(call)
            outside = _begin(ctx)
            answer = call.spec.handler(subject, ctx)
            if Lineage.forks != self._forks:
                self._end_fork(call)
            return self.answered(call, answer)
        except BaseException as error:
            if Lineage.forks != self._forks:
                self._end_fork(call)
            return self.raised(call, error)
        finally:
            if outside is not None:
                _end(outside)
            if points.listener is not None:
                points.reach("run.after", call)
            call.close()

    async def run_async(self, call: StageCall, clock: Callable[[], float]) -> list[FinishedAttempt]:
        """Run an async handler to its end; its timeout cancels it."""
        call.started = clock()
        if points.listener is not None:
            points.reach("run.before", call)
        limit = call.spec.timeout_seconds
        try:
            subject, ctx = self._open(call)
            _begin(ctx)
            if limit is None:
                answer = await call.spec.handler(subject, ctx)
            else:
                async with asyncio.timeout(limit) as scope:
                    answer = await call.spec.handler(subject, ctx)
            if Lineage.forks != self._forks:
                self._end_fork(call)
            return self.answered(call, answer)
        except TimeoutError as error:
            expired = limit is not None and scope.expired()
            return self.raised(call, call.timeout_error() if expired else error)
        except asyncio.CancelledError as error:
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                raise  # the owner of the task knows whether this was intended
            return self.raised(call, error)
        except BaseException as error:
            if Lineage.forks != self._forks:
                self._end_fork(call)
            return self.raised(call, error)
        finally:
            _begin(None)
            if points.listener is not None:
                points.reach("run.after", call)
            call.close()

    def _end_fork(self, call: StageCall) -> None:
        """End a forked process whose handler returned here: it has no worker to continue with."""
        print(f"holdfast: {call.label}: a forked process came back from the handler and is ended", file=sys.stderr)
        os._exit(1)

    def _open(self, call: StageCall) -> tuple[Any, Context | BatchContext]:
        """The arguments for the handler."""
        if call.spec.batch is None:
            context = self._context(call, call.leases[0])
            call.contexts = (context,)
            return context.item, context
        call.contexts = contexts = [self._context(call, lease) for lease in call.leases]
        batch = BatchContext(contexts)
        return batch.items, batch

    def _context(self, call: StageCall, lease: Lease) -> Context:
        if lease.unsure is not None:
            raise UsageError(lease.unsure)
        data = lease.read_data()
        if call.spec.item_type is not None:
            data = self._typed(call, lease, data)
        if undeclared.listener is not None:
            data = undeclared.watched(data, call.spec)
        item = Item(call.pipeline, lease.key, data)
        return Context(item, lease.attempt, None, self._around, lease, call.spec, self._forks)

    def _typed(self, call: StageCall, lease: Lease, data: dict[str, Any]) -> Any:
        try:
            with found_at(self._around.blobs):
                return call.spec.data_of(data)
        except ValueMismatch as error:
            raise ValueMismatch(
                f"item {lease.key!r}, stage {call.spec.name!r}: {error}; it was added before its type changed, or where the "
                "type was not known: add it again with data that fits (`holdfast plan` shows what is stale)"
            ) from None
