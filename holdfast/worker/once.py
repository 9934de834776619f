"""A named sub-step of a stage: it is called once, and its result is recorded before it is used.

A call serves one item, or the items of a batch that have no record. Each item gets its own record and bears its share
of the cost.
"""

from __future__ import annotations

import inspect
import reprlib
import sys
from collections.abc import Collection, Mapping, Sequence, Set
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from holdfast.blobs.reference import found_at
from holdfast.engine.claim import Lease
from holdfast.engine.memos import MemoWrite
from holdfast.errors import AnswerNotKept, CallInDoubt, Permanent, UsageError, ValueRefused
from holdfast.model import codec
from holdfast.model.error_fingerprint import storable
from holdfast.model.item import Item
from holdfast.model.money import shares
from holdfast.model.outcome import ProviderPause, RetryLater
from holdfast.model.paid_call import NO_FACTS
from holdfast.model.stage import StageSpec
from holdfast.providers import verdict
from holdfast.providers.http_answers import Content, require_sent, wrapped_text
from holdfast.providers.verdicts import Verdict, is_free
from holdfast.worker.handler_environment import Surroundings
from holdfast.worker.once_decision import SubStep, key_of, key_of_all
from holdfast.worker.once_options import Terms, name_of
from holdfast.worker.once_sync_or_async import SubSteps, UserCall
from holdfast.worker.validate_answer import judge, rejection

if TYPE_CHECKING:
    from holdfast.telemetry.spans import PaidCallSpan

#: How many characters are kept of an answer that has no JSON form.
KEPT_LENGTH = 100_000
#: And how much of its bytes, which are written in base64.
KEPT_BYTES = codec.MAX_BYTES // 2
_BRIEF = reprlib.Repr()
_BRIEF.maxstring = _BRIEF.maxother = KEPT_LENGTH
_BRIEF.maxlist = _BRIEF.maxtuple = _BRIEF.maxdict = _BRIEF.maxset = _BRIEF.maxfrozenset = 1000


class CallAgain(Exception):
    """Raise or return it in an `on_doubt` function: the provider does not know the call, so make it."""


#: The verdict for each: an answer, or the exception that ends its attempt.
_Verdicts = dict[SubStep, Any]


@dataclass(slots=True, eq=False)
class Once:
    """One `ctx.once`: a call for one item, or for a batch if the items are given."""

    _around: Surroundings
    _spec: StageSpec
    _terms: Terms
    _parts: Sequence[SubStep]
    _items: Mapping[SubStep, Item] | None = None
    #: Of a paid call, if the program traces.
    _span: PaidCallSpan | None = None

    def steps(self) -> SubSteps:
        """Returns the answer or, for a batch, the verdicts of its items in their order."""
        self._terms.check(self._where(self._parts), may_wait=self._spec.is_async)
        for one in self._parts:
            one.enlist()
        verdicts: _Verdicts = yield from self._recall()
        due = self._decide([one for one in self._parts if one not in verdicts], verdicts)
        if due:
            self._heed_pause(due)
        due = yield from self._ask(due, verdicts)
        if due and self._terms.is_paid:
            due = yield from self._intend(due, verdicts)
        if due:
            self._agree_on_key(due)
            value = yield from self._call(due)
            verdicts |= yield from self._save(value, due)
        answers = [verdicts[one] for one in self._parts]
        if len(answers) == 1 and isinstance(answers[0], BaseException):
            raise answers[0]
        return answers[0] if self._items is None else answers

    # Before the call ----------------------------------------------------------------------------------------------

    def _recall(self) -> SubSteps:
        """The verdicts of the items that have a record."""
        recorded = []
        for one in self._parts:
            memo = one.memo
            if memo is not None and memo.state == "done":
                one.key = memo.idempotency_key
                recorded.append((one, memo.value or "null"))
        return (yield from self._judge(recorded))

    def _decide(self, parts: Sequence[SubStep], verdicts: _Verdicts) -> list[SubStep]:
        due = []
        for one in parts:
            try:
                one.decide()
                due.append(one)
            except (Permanent, CallInDoubt) as error:
                verdicts[one] = error
        return due

    def _heed_pause(self, due: Sequence[SubStep]) -> None:
        """Have the items wait if the call names a resource that is paused and that the stage does not use: what the stage
        uses was checked when the attempt was claimed."""
        named = self._terms.resource
        if named is None or named in self._spec.resources:
            return
        try:
            pause = self._around.pause_of(named)
        except UsageError as error:
            raise UsageError(f"{self._where(due)}: {error}") from None
        if pause is not None:
            why, seconds = pause
            raise RetryLater(after=seconds, reason=f"{why}; the call {self._terms.name!r} was not made")

    def _ask(self, due: Sequence[SubStep], verdicts: _Verdicts) -> SubSteps:
        """Ask the provider once about each call in doubt; return the items that still need a call."""
        in_doubt: dict[str, list[SubStep]] = {}
        for one in due:
            if (key := one.asks_about) is not None:
                in_doubt.setdefault(key, []).append(one)
        for key, some in in_doubt.items():
            assert callable(self._terms.on_doubt)
            try:
                answer = yield UserCall(self._terms.on_doubt, (key, *self._given(some)))
            except CallAgain as again:
                answer = again
            knows = answer is not CallAgain and not isinstance(answer, CallAgain)
            for one in some:
                one.key, one.was_free = key, not knows
                if knows:
                    one.doubt = "the provider was asked"
            if knows:
                verdicts |= yield from self._save(answer, some, asked=True)
        return [one for one in due if one not in verdicts]

    def _intend(self, due: Sequence[SubStep], verdicts: _Verdicts) -> SubSteps:
        """Record that the call is about to be made; return the items it is made for."""
        due = self._within_cap(due, verdicts)
        if not due:
            return due
        self._agree_on_key(due)
        facts = self._terms.facts_before(self._where(due))
        lost = yield from self._remember(
            [
                (one, one.write("intended", estimate=estimate, facts=its, doubt=one.doubt, was_free=one.was_free))
                for one, estimate, its in zip(
                    due, _shares(self._terms.expected, len(due)), facts.shares(len(due)), strict=True
                )
            ]
        )
        for one in due:
            one.doubt = None
        verdicts |= lost
        return [one for one in due if one not in lost]

    def _within_cap(self, due: Sequence[SubStep], verdicts: _Verdicts) -> Sequence[SubStep]:
        """The items that may cost their share. If one drops out, the shares of the others grow."""
        over: _Verdicts = {}
        for one, share in zip(due, _shares(self._terms.expected, len(due)), strict=True):
            try:
                one.check_cap(share or 0)
            except Permanent as error:
                over[one] = error
        verdicts |= over
        return self._within_cap([one for one in due if one not in over], verdicts) if over else due

    def _agree_on_key(self, due: Sequence[SubStep]) -> None:
        leases, name = [one.lease for one in due], self._terms.name
        key = key_of(leases[0], self._spec, name) if self._items is None else key_of_all(leases, self._spec, name)
        for one in due:
            one.key = key

    # The call, and after it ---------------------------------------------------------------------------------------

    def _call(self, due: Sequence[SubStep]) -> SubSteps:
        before, is_paid, function = sys.exception(), self._terms.is_paid, self._terms.function
        if is_paid and self._around.spans is not None:
            self._span = self._around.spans.paid_call(self._terms.name, self._terms.request)
            function = self._span.around(function)
        try:
            value = yield UserCall(function, (*self._given(due), *self._terms.args))
            require_sent(value)
        except BaseException as error:
            if self._span is not None:
                self._span.failed(error)
            meant = verdict(error, before=before) if is_paid else self._pause_asked_by(error)
            # A call that was refused or never sent is free at once. Any other may have been charged.
            if is_paid and meant is not None and is_free(meant, error):
                yield from self._remember([(one, one.write("free", reason=storable(str(meant)))) for one in due])
            if isinstance(meant, ProviderPause) and meant.resource is None:
                meant.resource = self._terms.resource
            if meant is None or meant is error:
                raise
            raise meant from error
        if inspect.isawaitable(value):
            if inspect.iscoroutine(value):
                value.close()
            if is_paid:
                yield from self._remember([(one, one.write("free", reason="it was never awaited")) for one in due])
            name = name_of(self._terms.function)
            raise UsageError(f"{self._where(due)}: {name} is async: call it from an async handler")
        return value

    def _pause_asked_by(self, error: BaseException) -> Verdict | None:
        """The pause that an error of a call that is not paid asks for, if the call names the resource that it is for."""
        if self._terms.resource is None:
            return None
        meant = verdict(error, paid=False)
        return meant if isinstance(meant, ProviderPause) else None

    def _save(self, value: Any, some: Sequence[SubStep], *, asked: bool = False) -> SubSteps:
        """Record what a call returned; return the verdicts. The answer is paid for: no error here may lose it."""
        where = self._where(some)
        cost, unpriced = self._terms.cost_of(value, where)
        facts, odd = self._terms.facts_of(value, where)
        if self._span is not None:
            self._span.answered(cost, facts)
        if asked and not callable(self._terms.facts):
            facts = NO_FACTS  # keep those that were recorded for all items of the call
        paid = [
            {"cost": share, "facts": its, "doubt": one.doubt}
            for one, share, its in zip(some, self._costs(cost, some, asked), facts.shares(len(some)), strict=True)
        ]
        answers = self._apart(value, some)
        if isinstance(answers, str):
            raise (yield from self._keep_whole(value, some, paid, answers))
        good: list[tuple[SubStep, str]] = []
        verdicts: _Verdicts = {}
        writes: list[tuple[SubStep, MemoWrite]] = []
        unkept: Permanent | None = None
        for one, its in zip(some, paid, strict=True):
            if one not in answers:
                reason = "the call returned no answer for this item"
                verdicts[one] = rejection(one, reason)
                writes.append((one, one.write("rejected", reason=reason, **its)))
                continue
            try:
                text = codec.encode(answers[one])
            except ValueRefused as error:
                unkept = self._not_kept(one, answers[one], error)
                if self._terms.is_paid:
                    # Rejected at once: as an answer, this text would be used by the next attempt.
                    shown, reason = (
                        codec.encode(_shown(answers[one])),
                        f"it cannot be kept: {_why(answers[one], error)}",
                    )
                    writes.append((one, one.write("rejected", value=shown, reason=reason, **its)))
            else:
                good.append((one, text))
                writes.append((one, one.write("done", value=text, **its)))
        lost = yield from self._remember(writes)
        trouble = unkept or unpriced or odd
        if trouble is not None and len(lost) < len(some):
            raise trouble
        judged = yield from self._judge([(one, text) for one, text in good if one not in lost])
        return {**verdicts, **judged, **lost}

    def _judge(self, answers: Sequence[tuple[SubStep, str]]) -> SubSteps:
        """The verdicts of recorded answers: those that `validate` objects to are rejected. If `validate` itself fails,
        the record stays.
        """
        verdicts: _Verdicts = {}
        refused = []
        for one, text in answers:
            try:
                with found_at(self._around.blobs):
                    reason, value = judge(one.terms, text)
            except Exception as mistake:
                verdicts[one] = mistake
                continue
            if reason is None:
                verdicts[one] = value
            else:
                verdicts[one] = rejection(one, reason)
                refused.append((one, one.write("rejected", value=text, reason=reason)))
        lost = yield from self._remember(refused)
        return {**verdicts, **lost}

    def _keep_whole(self, value: Any, some: Sequence[SubStep], paid: Sequence[dict[str, Any]], wrong: str) -> SubSteps:
        """The answers cannot be assigned to items: keep them with the first item, with the cost shared by all. Returns
        an error.
        """
        where, function = self._where(some), name_of(self._terms.function)
        if not self._terms.is_paid:
            return Permanent(f"{where}: {function} returned {wrong}")
        shown, reason = codec.encode(_shown(value)), f"the call returned {wrong}"
        yield from self._remember(
            [
                (one, one.write("rejected", value=shown if one is some[0] else None, reason=reason, **its))
                for one, its in zip(some, paid, strict=True)
            ]
        )
        return AnswerNotKept(
            f"{where}: {function} returned {wrong}; what it returned is paid for, and kept as text with item "
            f"{some[0].lease.key!r} (holdfast show), and the stage is paused: let it return one answer for each item, then: "
            f"holdfast resume PIPELINE/{self._spec.name} and holdfast retry"
        )

    def _not_kept(self, one: SubStep, value: Any, error: ValueRefused) -> Permanent:
        if not self._terms.is_paid:
            return Permanent(f"{one.where}: the result cannot be kept: {error}")
        had_no_place = isinstance(value, Content) and value.trouble
        mend = "mend this" if had_no_place else f"let {name_of(self._terms.function)} return a plain value"
        return AnswerNotKept(
            f"{one.where}: the answer is paid for and cannot be kept: {_why(value, error)}; it is kept as text, bytes as "
            f"base64 (holdfast show), and the stage is paused: {mend}, then: holdfast resume PIPELINE/{self._spec.name} and "
            "holdfast retry"
        )

    # The parts ----------------------------------------------------------------------------------------------------

    def _where(self, some: Sequence[SubStep]) -> str:
        others = f" and {len(some) - 1} more" if len(some) > 1 else ""
        return f"item {some[0].lease.key!r}{others}, stage {self._spec.name!r}, once({self._terms.name!r})"

    def _given(self, some: Sequence[SubStep]) -> tuple[list[Item], ...]:
        """The items, as an argument for a function that is called for a batch."""
        return () if self._items is None else ([self._items[one] for one in some],)

    def _apart(self, value: Any, some: Sequence[SubStep]) -> dict[SubStep, Any] | str:
        """What was returned for each item, or a description of what is wrong with it."""
        if self._items is None:
            return {some[0]: value}
        by_key = {self._items[one].key: one for one in some}
        if not isinstance(value, Collection) or isinstance(value, (str, bytes, Set)):
            return f"a {type(value).__name__} for {len(some)} items"
        if isinstance(value, Mapping):
            strange = [key for key in value if key not in by_key]
            return f"an answer for {strange[0]!r}" if strange else {by_key[key]: value[key] for key in value}
        answers = list(value)
        if len(answers) != len(some):
            return f"{len(answers)} answers for {len(some)} items"
        return dict(zip(some, answers, strict=True))

    def _costs(self, cost: int | None, some: Sequence[SubStep], asked: bool) -> Sequence[int | None]:
        """The share of each item. All items of a call share a fixed price, including those not in this batch."""
        if asked and self._items is not None and not callable(self._terms.cost):
            return [None if (memo := one.memo) is None else memo.estimate for one in some]
        return _shares(cost, len(some))

    def _remember(self, writes: Sequence[tuple[SubStep, MemoWrite]]) -> SubSteps:
        """Write memos in one transaction; return the verdicts of those whose lease was lost."""
        if not writes:
            return {}
        for _, write in writes:
            write.resource = self._terms.resource
            write.lead = writes[0][1].lease.id if len(writes) > 1 else None
        if self._terms.heard is not None:
            writes[0][1].pause = self._terms.heard()
        yield self._around.remember([write for _, write in writes])
        return {one: write.lease_lost() for one, write in writes if write.lost}


def forget(around: Surroundings, lease: Lease, name: str, reason: str, forgotten: set[str]) -> SubSteps:
    """Reject the recorded answer of a sub-step; returns whether there was one."""
    memo = lease.memos.get(name)
    if memo is None or memo.state != "done":
        return False
    write = MemoWrite(lease, name, "rejected", memo.version, memo.idempotency_key, value=memo.value, reason=reason)
    yield around.remember([write])
    if write.lost:
        raise write.lease_lost()
    forgotten.add(name)
    return True


def _shares(whole: int | None, n: int) -> Sequence[int | None]:
    return [None] * n if whole is None or not n else shares(whole, n)


def _why(value: Any, error: ValueRefused) -> str:
    return (value.trouble if isinstance(value, Content) else "") or str(error)


def _shown(value: Any) -> str:
    """A text form of a value that has no JSON form: what it brought, if it wraps a response or bytes."""
    brought = wrapped_text(value, KEPT_BYTES)
    if brought is not None:
        return brought
    try:
        return storable(_BRIEF.repr(value), KEPT_LENGTH)
    except Exception as error:
        return f"(it cannot be shown: {type(error).__name__})"
