"""What the end of a handler means for each of its items: what it returned or raised becomes a finished attempt."""

from __future__ import annotations

import random
from typing import Any

from holdfast.clock import microseconds
from holdfast.engine.claim import Lease
from holdfast.engine.finish import FinishedAttempt
from holdfast.engine.settle_resources import CREDIT_US
from holdfast.errors import (
    AnswerNotKept,
    CallInDoubt,
    Permanent,
    RejectedTooOften,
    StoreConflict,
    StoreUnavailable,
    UsageError,
    ValueRefused,
)
from holdfast.model import codec
from holdfast.model.faults import describe
from holdfast.model.outcome import NOTHING, CredentialRefused, OutOfCredit, RateLimited, RetryLater, Skip, reason_of
from holdfast.model.resource import COOL_MOST_SECONDS, COOL_SECONDS
from holdfast.model.states import PASSED, State
from holdfast.providers.questions import heard, is_wrong_request
from holdfast.worker.call import StageCall
from holdfast.worker.context import Said

#: Avoids an Enum lookup on a path that every item takes.
_DONE = State.DONE

#: When to retry work that found the database unavailable.
AWAY_US = 2_000_000


class HandlerOutcome:
    """Turns what handlers return and raise into finished attempts."""

    def __init__(self, rng: random.Random | None = None) -> None:
        self._rng = rng or random.Random()

    def raised(self, call: StageCall, error: BaseException) -> list[FinishedAttempt]:
        """How a call that raised ended: the same for each of its items."""
        if isinstance(error, (Skip, RetryLater, RateLimited, OutOfCredit, CredentialRefused)):
            return [self._verdict(call, lease, error) for lease in call.leases]
        if (told := heard(error)) is not None:
            return [self._verdict(call, lease, told) for lease in call.leases]
        text, trace = describe(error)
        if isinstance(error, (StoreUnavailable, StoreConflict)):
            # The database was unavailable when the handler used it. The item is not at fault, and the attempt does not
            # count.
            return [
                self._finished(call, lease, State.RETRY_LATER, error=text, delay_us=AWAY_US, snooze=True)
                for lease in call.leases
            ]
        if isinstance(error, Permanent):
            return [self._failed(call, lease, error, text, trace) for lease in call.leases]
        if isinstance(error, CallInDoubt):
            return [self._held(call, lease, text) for lease in call.leases]
        return [self._retry(call, lease, error, text, trace, len(call.leases)) for lease in call.leases]

    def answered(self, call: StageCall, answer: Any) -> list[FinishedAttempt]:
        if call.spec.batch is None:
            return [self._verdict(call, call.leases[0], answer)]
        if not isinstance(answer, list) or len(answer) != len(call.leases):
            got = f"{len(answer)} verdicts" if isinstance(answer, list) else f"a {type(answer).__name__}"
            wrong = Permanent(
                f"a batch of {len(call.leases)} items needs a list of as many verdicts, the handler returned {got}"
            )
            return self.raised(call, wrong)
        return [self._verdict(call, lease, one) for lease, one in zip(call.leases, answer, strict=True)]

    def _verdict(self, call: StageCall, lease: Lease, answer: Any) -> FinishedAttempt:
        if isinstance(answer, BaseException):
            return self._outcome(call, lease, answer)
        try:
            result, form = codec.encoded(answer)
        except ValueRefused as error:
            text = f"item {lease.key!r}, stage {call.spec.name!r}: the result cannot be kept: {error}"
            return self._finished(call, lease, State.FAILED, error=text, traceback=text)
        if call.spec.normalise is not None:
            form = self._normalised(call, lease, result)
        output_hash = NOTHING if form is None else codec.digest(form)
        finished = FinishedAttempt(lease, _DONE, call.spec.version, result, output_hash)
        finished.routine = not self._complete(finished, call) and lease.is_first
        return finished

    def _normalised(self, call: StageCall, lease: Lease, result: str) -> Any:
        assert call.spec.normalise is not None
        try:
            return codec.plain(call.spec.normalise(codec.decode(result)))
        except ValueRefused as error:
            where = f"item {lease.key!r}, stage {call.spec.name!r}"
            raise UsageError(f"{where}: what normalise returned cannot be compared: {error}") from None

    def _outcome(self, call: StageCall, lease: Lease, answer: BaseException) -> FinishedAttempt:
        """An answer that is not a value: an outcome such as `Skip`, or an exception for one item of a batch."""
        if isinstance(answer, Skip):
            return self._finished(call, lease, State.SKIPPED, output_hash=NOTHING, error=reason_of(answer))
        if isinstance(answer, RetryLater):
            reason = reason_of(answer)
            return self._finished(
                call, lease, State.RETRY_LATER, error=reason, delay_us=microseconds(answer.after_seconds), snooze=True
            )
        if isinstance(answer, (RateLimited, OutOfCredit, CredentialRefused)):
            return self._limited(call, lease, answer)
        if (told := heard(answer)) is not None:
            return self._limited(call, lease, told)
        text, trace = describe(answer)
        if isinstance(answer, Permanent):
            return self._failed(call, lease, answer, text, trace)
        if isinstance(answer, CallInDoubt):
            return self._held(call, lease, text)
        return self._retry(call, lease, answer, text, trace, 1)

    def _held(self, call: StageCall, lease: Lease, text: str) -> FinishedAttempt:
        """Put an item on hold until a person has decided about its call. Other items of the batch are not affected and
        run again without it.
        """
        in_doubt = any(memo.state == "intended" for memo in lease.memos.values())
        return self._finished(call, lease, State.ON_HOLD if in_doubt else State.PENDING, error=text)

    def _failed(self, call: StageCall, lease: Lease, error: Permanent, text: str, trace: str) -> FinishedAttempt:
        stop = text if isinstance(error, AnswerNotKept) else None
        return self._finished(
            call,
            lease,
            State.FAILED,
            error=text,
            traceback=trace,
            stop_stage=stop,
            rejected=isinstance(error, RejectedTooOften),
        )

    def _limited(
        self, call: StageCall, lease: Lease, answer: RateLimited | OutOfCredit | CredentialRefused
    ) -> FinishedAttempt:
        """The item is not at fault, and the attempt does not count. Jitter only lengthens the wait: never retry earlier
        than the provider said.
        """
        # A provider that asks for a pause of zero does not mean it.
        asked = (answer.after_seconds or None) if isinstance(answer, RateLimited) else None
        if asked is not None:
            wait = min(asked, COOL_MOST_SECONDS)
        elif call.spec.resources:
            wait = 0.0  # its resource delays it
        else:
            wait = CREDIT_US / 1e6 if isinstance(answer, OutOfCredit) else COOL_SECONDS
            if isinstance(answer, CredentialRefused):
                wait = AWAY_US / 1e6
        wait *= 1 + self._rng.random() / 10
        return self._finished(
            call,
            lease,
            State.RETRY_LATER,
            error=reason_of(answer),
            delay_us=microseconds(wait),
            snooze=True,
            cool_us=(microseconds(asked) if asked is not None else 0) if isinstance(answer, RateLimited) else None,
            out_of_credit=isinstance(answer, OutOfCredit),
            key_refused=isinstance(answer, CredentialRefused),
        )

    def _retry(
        self, call: StageCall, lease: Lease, error: BaseException, text: str, trace: str, company: int
    ) -> FinishedAttempt:
        delay = call.spec.backoff.delay(lease.attempt, self._rng)
        return self._finished(
            call,
            lease,
            State.RETRY_LATER,
            error=text,
            traceback=trace,
            delay_us=microseconds(delay),
            company=company,
            item_at_fault=is_wrong_request(error),
        )

    def _finished(self, call: StageCall, lease: Lease, state: State, **more: Any) -> FinishedAttempt:
        finished = FinishedAttempt(lease, state, call.spec.version, **more)
        self._complete(finished, call)
        return finished

    def _complete(self, finished: FinishedAttempt, call: StageCall) -> bool:
        """Add what the call knows: how long it took, and what its handler recorded. True if it recorded anything."""
        finished.took_us, finished.waited_us = call.times_us()
        contexts = call.contexts
        if len(call.leases) > 1:
            finished.share = len(call.leases)
        if not contexts:
            return False
        context = contexts[0] if len(contexts) == 1 else contexts[call.leases.index(finished.lease)]
        if context.said is None:
            return False
        self._add_said(finished, context.said, call)
        return True

    def _add_said(self, finished: FinishedAttempt, said: Said, call: StageCall) -> None:
        finished.costs, finished.used, finished.events = said.costs, said.units_used, said.events
        if finished.cool_us is None:
            finished.cool_us = said.cool_us
        if finished.state in PASSED and (said.effects or said.follow_ons):
            finished.effects, finished.follow_ons = said.effects, said.follow_ons
            finished.backoff_us = microseconds(call.spec.backoff.delay(finished.lease.attempt, self._rng))
