"""What the end of a handler means for each of its items: what it returned or raised becomes a finished attempt."""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Iterable
from typing import Any, NamedTuple

from holdfast.blobs import Blobs
from holdfast.blobs.reference import KEY, references_in
from holdfast.clock import microseconds
from holdfast.engine.claim import Lease
from holdfast.engine.finish_leases import FinishedAttempt
from holdfast.errors import (
    AnswerNotKept,
    BadRequest,
    BlobMissing,
    CallInDoubt,
    ContentFiltered,
    InputTooLong,
    Permanent,
    RejectedTooOften,
    StoreConflict,
    StoreUnavailable,
    UsageError,
    ValueMismatch,
    ValueRefused,
)
from holdfast.model import codec
from holdfast.model.durations import spoken
from holdfast.model.error_fingerprint import describe
from holdfast.model.outcome import (
    NOTHING,
    CredentialRefused,
    OutOfCredit,
    Overloaded,
    ProviderPause,
    RateLimited,
    RetryLater,
    Skip,
    reason_of,
)
from holdfast.model.resource import COOL_MOST_SECONDS, COOL_SECONDS
from holdfast.model.states import PASSED, State
from holdfast.providers import verdict
from holdfast.providers.verdicts import is_of_provider, is_wrong_request
from holdfast.worker.call import StageCall
from holdfast.worker.context import Said

#: Avoids an Enum lookup on a path that every item takes.
_DONE = State.DONE

#: When to retry work that found the database unavailable.
AWAY_US = 2_000_000
#: How much longer than was asked an item waits at most, so that not all come back at once.
MOST_JITTER_SECONDS = 30.0

#: An overload or a refused key that one item has met this often in a row, while others passed, is the item's own.
MOST_PAUSES = 5
#: How many items are watched for that.
MOST_WATCHED = 10_000
#: Verdicts about what was sent. Of a batch, nobody knows which item it was.
_ABOUT_THE_INPUT = (InputTooLong, ContentFiltered, BadRequest)


class _Raised(NamedTuple):
    """What a handler raised, or returned in place of a result: what it means, and what is recorded of it."""

    error: BaseException
    meant: BaseException
    text: str | None
    trace: str | None
    #: A server asked for a pause in its reply to a plain request, not a provider through its client.
    is_plain: bool
    #: Only this request was wrong, and the server works.
    is_wrong_request: bool

    @classmethod
    def of(cls, error: BaseException) -> _Raised:
        found = None if isinstance(error, (Skip, RetryLater)) else verdict(error, paid=False)
        is_plain = found is not None and found is not error and not is_of_provider(error)
        meant: BaseException = found or error
        if isinstance(meant, RateLimited) and not is_plain and (meant.after_seconds or 0) > COOL_MOST_SECONDS:
            meant = _used_up(meant)
        if isinstance(meant, (Skip, RetryLater, ProviderPause)):
            return cls(error, meant, reason_of(meant), None, is_plain, False)
        return cls(error, meant, *_described(error, meant), is_plain, is_wrong_request(error))

    def as_failure(self) -> _Raised:
        """A pause that counts as a failure of its item, with its class and its place."""
        text, trace = _described(self.error, self.meant)
        return self._replace(text=text, trace=trace)


def _described(error: BaseException, meant: BaseException) -> tuple[str, str]:
    """What an error means, as text, and where it was raised."""
    text, trace = describe(error)
    return text if meant is error else describe(meant)[0], trace


def _used_up(limit: RateLimited) -> OutOfCredit:
    """So long a pause is asked for only where something has been used up."""
    out = OutOfCredit(f"{limit.reason} (a pause of {spoken(limit.after_seconds or 0)} is asked for)")
    out.resource = limit.resource
    return out


class HandlerOutcome:
    """Turns what handlers return and raise into finished attempts."""

    def __init__(self, blobs: Blobs) -> None:
        self._blobs = blobs
        self._rng = random.Random()
        #: By stage and item: how often in a row it has met an overload or a refused key, and how many others had passed before.
        self._paused: dict[tuple[int, int], tuple[int, int]] = {}
        self._passed: Counter[int] = Counter()
        #: Stages in which a key was refused, and whether a handler that holdfast sees no calls of has passed since.
        self._refused: dict[int, bool] = {}

    def raised(self, call: StageCall, error: BaseException) -> list[FinishedAttempt]:
        """How a call that raised ended: the same for each of its items."""
        raised = _Raised.of(error)
        ended = [self._outcome(call, lease, raised, len(call.leases)) for lease in call.leases]
        for other in ended[1:]:
            other.key_refused = False  # one call, one refusal
        return ended

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
            return self._outcome(call, lease, _Raised.of(answer), 1)
        try:
            if (type_ := call.spec.result_type) is not None:
                answer = type_.form(answer, "result")
            result, form = codec.encoded(answer)
        except ValueMismatch as error:
            # An attempt like any other: a model may answer differently when it is asked again.
            mismatch = ValueMismatch(f"item {lease.key!r}, stage {call.spec.name!r}: {error}")
            return self._outcome(call, lease, _Raised.of(mismatch), 1)
        except ValueRefused as error:
            text = f"item {lease.key!r}, stage {call.spec.name!r}: the result cannot be kept: {error}"
            return self._finished(call, lease, State.FAILED, error=text, traceback=text)
        if call.spec.normalise is not None:
            form = self._normalised(call, lease, result)
        if self._paused or self._refused:
            self._saw_pass(call, lease)
        output_hash = NOTHING if form is None else codec.digest(form)
        finished = FinishedAttempt(lease, _DONE, call.spec.version, result, output_hash)
        if type_ is not None:
            finished.type = type_.fingerprint
        finished.routine = not self._complete(finished, call) and lease.is_first
        if KEY in result or finished.follow_ons or finished.events:
            try:
                facts = [codec.encode(event.facts) for event in finished.events]
                _require_content(self._blobs, [result, *(one.data for one in finished.follow_ons), *facts])
            except Exception as error:
                return self._outcome(call, lease, _Raised.of(error), 1)
        return finished

    def _normalised(self, call: StageCall, lease: Lease, result: str) -> Any:
        assert call.spec.normalise is not None
        try:
            return codec.plain(call.spec.normalise(codec.decode(result)))
        except ValueRefused as error:
            where = f"item {lease.key!r}, stage {call.spec.name!r}"
            raise UsageError(f"{where}: what normalise returned cannot be compared: {error}") from None

    def _outcome(self, call: StageCall, lease: Lease, raised: _Raised, company: int) -> FinishedAttempt:
        """The end of an attempt without a result. `company` is how many items may have caused it."""
        meant = raised.meant
        may_be_its_own = isinstance(meant, (Overloaded, CredentialRefused)) and not raised.is_plain
        its_own = may_be_its_own and self._is_alone_with_it(call, lease)
        if its_own:
            raised = raised.as_failure()
        text, trace = raised.text, raised.trace
        if isinstance(meant, Skip):
            return self._finished(call, lease, State.SKIPPED, output_hash=NOTHING, error=text)
        if isinstance(meant, RetryLater):
            delay_us = microseconds(meant.after_seconds)
            return self._finished(call, lease, State.RETRY_LATER, error=text, delay_us=delay_us, snooze=True)
        if isinstance(meant, ProviderPause) and not its_own:
            return self._limited(call, lease, meant, text, is_plain=raised.is_plain)
        if isinstance(meant, (StoreUnavailable, StoreConflict)):
            # The database was unavailable when the handler used it. The item is not at fault, and the attempt does not
            # count.
            return self._finished(call, lease, State.RETRY_LATER, error=text, delay_us=AWAY_US, snooze=True)
        if isinstance(meant, Permanent) and not (company > 1 and isinstance(meant, _ABOUT_THE_INPUT)):
            return self._finished(
                call,
                lease,
                State.FAILED,
                error=text,
                traceback=trace,
                stop_stage=text if isinstance(meant, AnswerNotKept) else None,
                rejected=isinstance(meant, RejectedTooOften),
            )
        if isinstance(meant, CallInDoubt):
            # Until a person has decided about its call. Other items of the batch are not affected and run again without it.
            state = State.ON_HOLD if lease.has_open_call else State.PENDING
            return self._finished(call, lease, state, error=text)
        return self._finished(
            call,
            lease,
            State.RETRY_LATER,
            error=text,
            traceback=trace,
            delay_us=microseconds(call.spec.backoff.delay(lease.attempt, self._rng)),
            company=company,
            item_at_fault=raised.is_wrong_request,
        )

    def _saw_pass(self, call: StageCall, lease: Lease) -> None:
        self._passed[call.kind] += 1
        self._paused.pop((call.kind, lease.item), None)
        # Where calls are recorded, the records tell whether the key is accepted: an attempt may pass without a call.
        if call.kind in self._refused and not lease.memos:
            self._refused[call.kind] = True

    def _is_alone_with_it(self, call: StageCall, lease: Lease) -> bool:
        """Whether only this item meets an overload or a refused key, again and again, while others of its stage pass: the
        provider may not cope with its input, or not give this key what it names. If nobody passes, the provider is down, or
        the key is wrong, and waiting costs no attempt.
        """
        place, passed = (call.kind, lease.item), self._passed[call.kind]
        times, before = self._paused.pop(place, (0, passed))
        if times + 1 >= MOST_PAUSES and passed > before:
            return True
        if len(self._paused) < MOST_WATCHED:
            self._paused[place] = times + 1, before
        return False

    def _has_worked(self, call: StageCall) -> bool:
        """Note a refused key; whether the stage has passed since the one before."""
        worked, self._refused[call.kind] = self._refused.get(call.kind, False), False
        return worked

    def _limited(
        self, call: StageCall, lease: Lease, pause: ProviderPause, text: str | None, *, is_plain: bool
    ) -> FinishedAttempt:
        """The item is not at fault, and the attempt does not count. Jitter only lengthens the wait: never retry earlier
        than the provider said.
        """
        is_limit, is_refused = isinstance(pause, RateLimited), isinstance(pause, CredentialRefused)
        # A provider that asks for a pause of zero does not mean it.
        asked = (pause.after_seconds or None) if isinstance(pause, RateLimited) else None
        if asked is not None:
            wait = min(asked, COOL_MOST_SECONDS)
        elif (call.spec.resources and not is_refused) or isinstance(pause, OutOfCredit):
            wait = 0.0  # its resource, or the stage, is paused
        else:
            wait = COOL_SECONDS if is_limit else AWAY_US / 1e6
        wait += self._rng.random() * min(wait / 10, MOST_JITTER_SECONDS)
        return self._finished(
            call,
            lease,
            State.RETRY_LATER,
            error=text,
            delay_us=microseconds(wait),
            snooze=True,
            cool_us=microseconds(asked or 0) if is_limit else None,
            out_of_credit=isinstance(pause, OutOfCredit),
            key_refused=is_refused,
            key_worked=is_refused and self._has_worked(call),
            limited_resource=pause.resource,
            pauses_stage=not is_plain,
        )

    def _finished(self, call: StageCall, lease: Lease, state: State, **more: Any) -> FinishedAttempt:
        finished = FinishedAttempt(lease, state, call.spec.version, type=call.spec.type, **more)
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
        if finished.cool_us is None and said.cool_until is not None:
            # The pause began when the handler heard of it.
            finished.cool_us = microseconds(max(0.0, said.cool_until - time.monotonic())) or None
        if finished.state in PASSED and (said.effects or said.follow_ons):
            finished.effects, finished.follow_ons = said.effects, said.follow_ons
            finished.backoff_us = microseconds(call.spec.backoff.delay(finished.lease.attempt, self._rng))


def fail_unsaved(one: FinishedAttempt, error: Exception) -> None:
    """Turn an attempt that cannot be saved into a failure, as if its handler had raised."""
    text, trace = describe(error)
    one.state, one.result, one.output_hash, one.routine = State.RETRY_LATER, None, None, False
    one.error, one.traceback = f"the attempt could not be saved: {text}", trace
    one.delay_us = one.backoff_us or 1_000_000
    one.snooze = False
    # These may be what cannot be saved.
    one.used, one.costs = {}, []


def _require_content(blobs: Blobs, texts: Iterable[str]) -> None:
    """Refuse to refer to content that is not there, and protect what is from a collection before the commit. A handler may
    pass on a reference from an earlier result that has been replaced since."""
    missing = blobs.hold(sha256 for text in texts for sha256 in references_in(text))
    if missing:
        raise BlobMissing(f"it refers to sha256:{missing[0]}, which is not at {blobs.where}: keep the content again")
