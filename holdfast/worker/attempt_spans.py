"""The spans of a worker's attempts, from the start of a handler's call to the commit that ends it.

Only a worker whose program traces has these parts: nothing is decided per step.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import TYPE_CHECKING, Any

from holdfast.engine.claim import Lease
from holdfast.engine.finish_leases import HANDED_BACK, RETRIED, AttemptEffect, FinishedAttempt
from holdfast.errors import StoreError
from holdfast.model.log_lines import logger
from holdfast.model.states import State
from holdfast.telemetry.attributes import BATCH_SIZE, Attributes, of_attempt, of_stage
from holdfast.worker.call import StageCall
from holdfast.worker.commit.claim_planner import ClaimOrder
from holdfast.worker.commit.committer import Committer
from holdfast.worker.commit.settle_and_claim import Settled
from holdfast.worker.handler_environment import Surroundings
from holdfast.worker.runner import StageRunner

if TYPE_CHECKING:
    from opentelemetry.trace import Span, SpanContext

    from holdfast.telemetry.spans import Spans

log = logger("holdfast.worker")

#: Gets a call that has ended, and how its attempts ended.
Report = Callable[[StageCall, list[FinishedAttempt]], None]

_OUTCOMES = {State.RETRY_LATER: RETRIED, State.PENDING: HANDED_BACK}


class AttemptSpans:
    """The spans of calls that run, and of attempts that wait for their commit."""

    def __init__(self, spans: Spans, worker_name: str) -> None:
        self._spans = spans
        self._worker_name = worker_name
        #: What all spans of a stage have in common, by its id.
        self._stages: dict[int, tuple[str, Attributes]] = {}
        self._running: dict[StageCall, Span] = {}
        #: By lease, for attempts that are sampled.
        self._ended: dict[int, SpanContext] = {}

    @contextmanager
    def running(self, call: StageCall) -> Iterator[None]:
        """Begin the span of a call, and make it the current one while the handler runs."""
        with self._spans.attached(self.begin(call)):
            yield
        if call.is_over:
            self.end(call, ())  # handed back meanwhile: nobody reports it

    def traceparent(self, call: StageCall) -> str | None:
        """Begin the span of a call that runs in a child process, which may be killed with spans of its own."""
        return self._spans.traceparent_of(self.begin(call))

    def begin(self, call: StageCall) -> Span:
        name, about = self._stages.get(call.kind) or self._learn(call)
        links = [
            (lease.traceparent, None if call.is_single else of_attempt(lease.key, lease.attempt, lease.id))
            for lease in call.leases
            if lease.traceparent is not None
        ]
        span = self._spans.processing(name, about, links)
        if span.is_recording():
            if call.is_single:
                [lease] = call.leases
                its = of_attempt(lease.key, lease.attempt, lease.id)
                span.set_attributes({**its, "messaging.message.id": its["holdfast.item.key"]})
            else:
                span.set_attribute(BATCH_SIZE, len(call.leases))
        self._running[call] = span
        return span

    def end(self, call: StageCall, finished: Sequence[FinishedAttempt]) -> None:
        """End the span of a call. Without attempts, the call was handed back while its handler ran."""
        span = self._running.pop(call, None)
        if span is None:
            return
        if span.is_recording():
            outcomes = {_outcome(one) for one in finished} or {HANDED_BACK}
            if len(outcomes) == 1:
                span.set_attribute("holdfast.outcome", outcomes.pop())
            for one in finished:
                self._ended[one.lease.id] = span.get_span_context()
                if one.effects:
                    one.effects = [self._traced(effect, span) for effect in one.effects]
            failed = next((one for one in finished if _outcome(one) in (RETRIED, State.FAILED)), None)
            if failed is not None:
                self._spans.say_failed(span, failed.error or "", failed.traceback)
        span.end()

    def reported(self, report: Report) -> Report:
        """What calls are reported to, so that their spans end first."""

        def traced(call: StageCall, finished: list[FinishedAttempt]) -> None:
            self.end(call, finished)
            report(call, finished)

        return traced

    def committing(self, finished: Sequence[FinishedAttempt]) -> AbstractContextManager[object]:
        """The span of a commit of these attempts, if any of them is sampled."""
        sampled = [span for one in finished if (span := self._ended.get(one.lease.id)) is not None]
        return self._spans.committing(sampled, len(finished)) if sampled else nullcontext()

    def forget(self, finished: Sequence[FinishedAttempt]) -> None:
        for one in finished:
            self._ended.pop(one.lease.id, None)

    def close(self) -> None:
        """End the spans of calls that were handed back and whose handlers have not ended."""
        for call in list(self._running):
            self.end(call, ())

    def _learn(self, call: StageCall) -> tuple[str, Attributes]:
        name = f"{call.pipeline}.{call.spec.name}"
        about = of_stage(call.pipeline, call.spec.name, call.spec.version, self._worker_name)
        words = {**self._spans.destination(name, "process", "process"), "messaging.client.id": self._worker_name}
        self._stages[call.kind] = name, {**about, **words}
        return self._stages[call.kind]

    def _traced(self, effect: AttemptEffect, span: Span) -> AttemptEffect:
        return AttemptEffect(self._spans.effect(span.get_span_context(), effect.function), effect.args)


def _outcome(one: FinishedAttempt) -> str:
    return HANDED_BACK if one.snooze else _OUTCOMES.get(one.state) or str(one.state)


class TracedRunner(StageRunner):
    """Runs each handler with the span of its call as the current one."""

    def __init__(self, around: Surroundings, attempts: AttemptSpans) -> None:
        super().__init__(around)
        self._attempts = attempts

    def run(self, call: StageCall, clock: Callable[[], float]) -> list[FinishedAttempt]:
        with self._attempts.running(call):
            return super().run(call, clock)

    async def run_async(self, call: StageCall, clock: Callable[[], float]) -> list[FinishedAttempt]:
        with self._attempts.running(call):
            return await super().run_async(call, clock)


class TracedCommitter(Committer):
    """Commits groups with sampled attempts in spans of their own."""

    def __init__(self, attempts: AttemptSpans, *args: Any) -> None:
        super().__init__(*args)
        self._attempts = attempts

    def _settle(self, finished: list[FinishedAttempt], orders: list[ClaimOrder]) -> None:
        with self._attempts.committing(finished):
            super()._settle(finished, orders)

    def _deliver(self, finished: list[FinishedAttempt], cycle: Settled) -> None:
        self._link([*cycle.moved, *(lease for leases in cycle.claimed.values() for lease in leases)])
        # Before the next stages of these items begin, under the same leases.
        left = {one.lease.id for one in cycle.left}
        self._attempts.forget([one for one in finished if one.lease.id not in left])
        super()._deliver(finished, cycle)

    def _link(self, leases: Sequence[Lease]) -> None:
        """Read which spans have added the items. The claim does not: workers that trace nothing would pay for it."""
        items = sorted({lease.item for lease in leases})
        try:
            # What was claimed waits for it, and can do without.
            found: dict[int, str] = dict(
                self._store.read(lambda tx: tx.run("traceparents", items=items), patience_seconds=1.0) if items else ()
            )
        except StoreError as error:
            log.debug("attempts are traced without links to what added their items: %s", error)
            return
        for lease in leases:
            lease.traceparent = found.get(lease.item)
