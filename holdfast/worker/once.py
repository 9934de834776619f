"""A named sub-step inside a stage: called once, recorded before its result is used, and never again.

What happens is written once, as a sequence of things to wait for; sync and async handlers differ only in how they wait.
"""

from __future__ import annotations

import asyncio
import inspect
import reprlib
import shlex
import sys
from collections.abc import Callable, Generator, Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, Protocol

from holdfast.engine.claim import Lease, Memo
from holdfast.engine.remember import MemoWrite, idempotency_key
from holdfast.errors import AnswerNotKept, Permanent, Rejected, RejectedTooOften, UsageError, ValueRefused
from holdfast.model import codec
from holdfast.model.faults import storable
from holdfast.model.functions import is_async
from holdfast.model.money import Amount, micros, spoken
from holdfast.model.outcome import CredentialRefused
from holdfast.model.paid import NO_FACTS, CallFacts
from holdfast.model.replies import key_refused, not_charged
from holdfast.model.stage import StageSpec

Price = Amount | Callable[[Any], Amount]
OnDoubt = Literal["retry", "hold"] | Callable[[str], Any]
Facts = Mapping[str, Any] | Callable[[Any], Mapping[str, Any]]

MAX_NAME = 200
#: So many answers of one call may be rejected before its item fails.
REJECTIONS = 3
#: How much is kept of an answer that has no JSON form.
KEPT_LENGTH = 100_000
_BRIEF = reprlib.Repr()
_BRIEF.maxstring = _BRIEF.maxother = KEPT_LENGTH
_BRIEF.maxlist = _BRIEF.maxtuple = _BRIEF.maxdict = _BRIEF.maxset = _BRIEF.maxfrozenset = 1000


class CallAgain(Exception):
    """Raise or return it in an `on_doubt` function: the provider knows nothing of the call, so make it."""


class Rememberer(Protocol):
    def remember(self, memo: MemoWrite) -> Future[None]: ...


class _Run(NamedTuple):
    """A function of the user's to be run."""

    function: Callable[..., Any]
    args: tuple[Any, ...]


#: What is waited for, one after another.
_Steps = Generator[Future[None] | _Run, Any, Any]


@dataclass(slots=True)
class SubStep:
    """One `ctx.once`."""

    around: Rememberer
    lease: Lease
    spec: StageSpec
    name: str
    function: Callable[..., Any]
    args: tuple[Any, ...]
    price: Price | None
    estimate: Amount | None
    on_doubt: OnDoubt
    resource: str | None
    #: The sub-steps of this attempt, by name.
    used: dict[str, SubStep]
    validate: Callable[[Any], Any] | None = None
    facts: Facts | None = None
    rejections: int = REJECTIONS
    #: What else this attempt has paid, in millionths.
    paid_beside: int = 0
    #: This attempt has had an answer to this name before, and has forgotten it.
    again: bool = False

    def run(self) -> Any:
        """In a sync handler."""
        self._check()
        for function in (self.function, self.on_doubt):
            if callable(function) and is_async(function):
                raise UsageError(f"{self._where}: {_name(function)} is async: call it from an async handler")
        steps = self._steps()
        try:
            step = next(steps)
            while True:
                try:
                    result = step.function(*step.args) if isinstance(step, _Run) else step.result()
                except BaseException as error:
                    step = steps.throw(error)
                else:
                    step = steps.send(result)
        except StopIteration as end:
            return end.value

    async def run_async(self) -> Any:
        """In an async handler. A plain function runs in a thread, so that the others go on."""
        self._check()
        steps = self._steps()
        try:
            step = next(steps)
            while True:
                try:
                    waited = _called(*step) if isinstance(step, _Run) else asyncio.wrap_future(step)
                    result = await waited
                except BaseException as error:
                    step = steps.throw(error)
                else:
                    step = steps.send(result)
        except StopIteration as end:
            return end.value

    def _steps(self) -> _Steps:
        memo = self._known()
        if memo is not None and memo.state == "done":
            return (yield from self._approved(memo.value or "null", memo.idempotency_key, memo.rejections))
        rejections = 0 if memo is None else memo.rejections
        if self.again and rejections and rejections % self.rejections == 0:
            raise RejectedTooOften(f"{self._where}: its answer was rejected {rejections} times, and is not bought again")
        key = self._key(memo)
        doubt, was_free = None, False
        if memo is not None and memo.state == "intended":
            doubt = self._policy(memo)
            if callable(self.on_doubt) and self.spec.stands(memo.version):
                answer = yield _Run(_asking(self.on_doubt), (key,))
                if not _is_call_again(answer):
                    return (yield from self._save(answer, key, rejections, "the provider was asked"))
                was_free = True
        if self._is_paid:
            self._check_cap()
            yield self._intend(key, doubt, was_free)
            doubt = None
        value = yield from self._call(key)
        return (yield from self._save(value, key, rejections, doubt))

    # The parts ----------------------------------------------------------------------------------------------------

    @property
    def _where(self) -> str:
        return f"item {self.lease.key!r}, stage {self.spec.name!r}, once({self.name!r})"

    @property
    def _is_paid(self) -> bool:
        return self.price is not None or self.estimate is not None

    @property
    def _expected(self) -> int | None:
        amount = self.estimate if self.estimate is not None else self.price
        return None if amount is None or callable(amount) else micros(amount)

    def _check(self) -> None:
        check_memo_name(self.name, self._where)
        if not callable(self.function):
            raise UsageError(f"{self._where}: {self.function!r} is not a function")
        if self.on_doubt not in ("retry", "hold") and not callable(self.on_doubt):
            raise UsageError(f'{self._where}: on_doubt={self.on_doubt!r}: it is "retry", "hold" or a function')
        if self.price is not None and not callable(self.price):
            micros(self.price, what=f"{self._where}: cost")
        for what, function in (("cost", self.price), ("validate", self.validate), ("facts", self.facts)):
            if callable(function) and is_async(function):
                raise UsageError(f"{self._where}: {what}: {_name(function)} is async; give a plain function")
        if self.validate is not None and not callable(self.validate):
            raise UsageError(f"{self._where}: validate={self.validate!r} is not a function")
        if isinstance(self.rejections, bool) or not isinstance(self.rejections, int) or self.rejections < 1:
            raise UsageError(f"{self._where}: rejections={self.rejections!r} is not a whole number of 1 or more")
        if not callable(self.facts):
            CallFacts.read(self.facts, where=self._where)
        if self.estimate is not None:
            micros(self.estimate, what=f"{self._where}: estimate")
        check_resource(self.resource, self._where)
        # In one step, for threads that come at the same time.
        if self.used.setdefault(self.name, self) is not self:
            raise UsageError(f"{self._where}: this name was used before in this attempt; names tell sub-steps apart")

    def _check_cap(self) -> None:
        """What one item may cost at this stage is not exceeded by a call that is about to be made."""
        most = self.spec.max_cost
        if most is None:
            return
        spent = self.paid_beside + sum(
            memo.cost or 0 if memo.state != "intended" else memo.estimate or 0
            for name, memo in self.lease.memos.items() if name != self.name or memo.rejections
        )  # fmt: skip
        if spent + (self._expected or 0) > most:
            raise Permanent(
                f"{self._where}: the stage may cost {spoken(most)} per item: {spoken(spent)} are spent, and "
                f"{spoken(self._expected or 0)} more would be too much; the call was not made"
            )

    def _known(self) -> Memo | None:
        """What earlier attempts left, unless it is a result of a version whose results no longer stand. A call that was
        begun may have been made, whatever the version."""
        memo = self.lease.memos.get(self.name)
        if memo is None or memo.state == "intended" or self.spec.stands(memo.version):
            return memo
        return None

    def _key(self, memo: Memo | None) -> str:
        if memo is not None and memo.state != "rejected" and self.spec.stands(memo.version):
            return memo.idempotency_key
        return idempotency_key(self.lease, self.name, self.spec.version, 0 if memo is None else memo.rejections)

    def _policy(self, memo: Memo) -> str:
        """What is done about a call that may or may not have been made."""
        if self.on_doubt == "hold":
            raise Permanent(
                f"{self._where}: the call was begun and never recorded, so it may have been made; it is not repeated: "
                f"see what the provider says, then: holdfast why {shlex.quote(self.lease.key)}"
            )
        if not self.spec.stands(memo.version):
            return f"called again by version {self.spec.version}"
        return "called again" if self.on_doubt == "retry" else "the provider knew nothing, called again"

    def _call(self, key: str) -> _Steps:
        before = sys.exception()
        try:
            value = yield _Run(self.function, self.args)
        except BaseException as error:
            # What was refused, or never sent, is free at once. Anything else may have been charged.
            if self._is_paid and (why := not_charged(error, before)) is not None:
                yield self._remember("free", key, reason=why)
            if self._is_paid and (refused := key_refused(error)) is not None and not isinstance(error, CredentialRefused):
                raise CredentialRefused(storable(refused)) from error
            raise
        if inspect.isawaitable(value):
            if inspect.iscoroutine(value):
                value.close()
            if self._is_paid:
                yield self._remember("free", key, reason="it was never awaited")
            raise UsageError(f"{self._where}: {_name(self.function)} is async: call it from an async handler")
        return value

    def _intend(self, key: str, doubt: str | None, was_free: bool) -> Future[None]:
        facts = NO_FACTS if callable(self.facts) else CallFacts.read(self.facts, where=self._where)
        return self._remember(
            "intended", key, estimate=self._expected, resource=self.resource, facts=facts, doubt=doubt, was_free=was_free
        )  # fmt: skip

    def _save(self, value: Any, key: str, rejections: int, doubt: str | None) -> _Steps:
        """Record an answer. It is made and paid by now: nothing that goes wrong here may lose it."""
        cost, unpriced = self._cost(value)
        facts, odd = self._facts(value)
        paid = {"cost": cost, "resource": self.resource, "facts": facts, "doubt": doubt}
        try:
            text = codec.encode(value)
        except ValueRefused as error:
            yield from self._keep_as_text(value, key, paid, error)
        yield self._remember("done", key, value=text, **paid)
        if (trouble := unpriced or odd) is not None:
            raise trouble
        return (yield from self._approved(text, key, rejections))

    def _approved(self, text: str, key: str, rejections: int) -> _Steps:
        """The recorded answer, if `validate` has nothing against it. A mistake in `validate` itself leaves the record."""
        if self.validate is None:
            return codec.decode(text)
        try:
            verdict = self.validate(codec.decode(text))
            if verdict is not False:
                return codec.decode(text)
            reason = f"{_name(self.validate)} said no"
        except (Rejected, ValueError) as error:
            reason = storable(f"{type(error).__name__}: {error}")
        yield self._remember("rejected", key, value=text, reason=reason)
        times = rejections + 1
        # Also beyond: a person who retries the item allows for as many again.
        if times % self.rejections == 0:
            raise RejectedTooOften(f"{self._where}: its answer was rejected {times} times, the last time because: {reason}")
        raise Rejected(f"{self._where}: the answer was rejected: {reason}; the next attempt calls again")

    def _keep_as_text(self, value: Any, key: str, paid: dict[str, Any], error: ValueRefused) -> _Steps:
        if not self._is_paid:
            raise Permanent(f"{self._where}: the result cannot be kept: {error}") from None
        try:
            shown = storable(_BRIEF.repr(value), KEPT_LENGTH)
        except Exception as worse:
            shown = f"(it cannot be shown: {type(worse).__name__})"
        # At once: as an answer, this text would be used by the next attempt.
        yield self._remember("rejected", key, value=codec.encode(shown), reason=f"it cannot be kept: {error}", **paid)
        raise AnswerNotKept(
            f"{self._where}: the answer is paid for and cannot be kept: {error}; it is kept as text (holdfast show), and the "
            f"stage is paused: let {_name(self.function)} return a plain value, then: holdfast resume "
            f"PIPELINE/{self.spec.name} and holdfast retry"
        ) from None

    def _cost(self, value: Any) -> tuple[int | None, Permanent | None]:
        """What the call cost; and why that cannot be told, if so."""
        if not callable(self.price):
            return (None if self.price is None else micros(self.price)), None
        try:
            return micros(self.price(value), what=f"{self._where}: cost"), None
        except Exception as error:
            return self._expected, Permanent(
                f"{self._where}: the result is recorded, but its cost cannot be told: {type(error).__name__}: {error}"
            )

    def _facts(self, value: Any) -> tuple[CallFacts, Permanent | None]:
        try:
            return CallFacts.read(self.facts(value) if callable(self.facts) else self.facts, where=self._where), None
        except Exception as error:
            return NO_FACTS, Permanent(
                f"{self._where}: the result is recorded, but not its facts: {type(error).__name__}: {error}"
            )

    def _remember(self, state: str, key: str, **more: Any) -> Future[None]:
        return self.around.remember(MemoWrite(self.lease, self.name, state, self.spec.version, key, **more))


def forget(around: Rememberer, lease: Lease, spec: StageSpec, name: str, reason: str) -> tuple[bool, Future[None] | None]:
    """Reject the recorded answer of a sub-step: whether there was one, and what to wait for."""
    memo = lease.memos.get(name)
    if memo is None or memo.state != "done":
        return False, None
    write = MemoWrite(lease, name, "rejected", memo.version, memo.idempotency_key, value=memo.value, reason=reason)
    return True, around.remember(write)


def check_memo_name(name: object, where: str) -> None:
    if isinstance(name, str) and 0 < len(name) <= MAX_NAME and codec.plain_text(name, MAX_NAME) == name:
        return
    raise UsageError(f"{where}: a name is a text of 1 to {MAX_NAME} characters")


def check_resource(resource: object, where: str) -> None:
    if resource is not None:
        if not isinstance(resource, str) or not resource or codec.plain_text(resource, MAX_NAME) != resource:
            raise UsageError(f"{where}: resource {resource!r} is not a name")


def _name(function: Any) -> str:
    return str(getattr(function, "__qualname__", repr(function)))


def _is_call_again(answer: object) -> bool:
    return answer is CallAgain or isinstance(answer, CallAgain)


async def _called(function: Callable[..., Any], args: tuple[Any, ...]) -> Any:
    value = function(*args) if is_async(function) else await asyncio.to_thread(function, *args)
    return await value if inspect.isawaitable(value) else value


def _asking(function: Callable[[str], Any]) -> Callable[[str], Any]:
    """The function, for which raising `CallAgain` means the same as returning it."""
    if is_async(function):

        async def ask_async(key: str) -> Any:
            try:
                return await function(key)
            except CallAgain as again:
                return again

        return ask_async

    def ask(key: str) -> Any:
        try:
            return function(key)
        except CallAgain as again:
            return again

    return ask
