"""A sub-step of one item: what earlier attempts recorded, and whether to call."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from holdfast.engine.claim import Lease, Memo
from holdfast.engine.memos import MemoWrite, idempotency_key
from holdfast.errors import CallInDoubt, Permanent, RejectedTooOften, UsageError
from holdfast.model import codec
from holdfast.model.money import spoken
from holdfast.model.stage import StageSpec
from holdfast.worker.once_options import Terms


@dataclass(slots=True, eq=False)
class SubStep:
    lease: Lease
    spec: StageSpec
    terms: Terms
    #: The sub-steps of this attempt, by name.
    used: dict[str, SubStep]
    #: What else this attempt has paid, in millionths.
    paid_beside: int = 0
    #: Whether this attempt had an answer under this name before and has forgotten it.
    again: bool = False
    #: The idempotency key that the provider sees.
    key: str = ""
    #: What was decided about the intent of an earlier attempt, and whether that call is known to be free.
    doubt: str | None = None
    was_free: bool = False

    @property
    def where(self) -> str:
        return f"item {self.lease.key!r}, stage {self.spec.name!r}, once({self.terms.name!r})"

    @property
    def memo(self) -> Memo | None:
        return known(self.lease, self.spec, self.terms.name)

    @property
    def rejections(self) -> int:
        return 0 if (memo := self.memo) is None else memo.rejections

    def enlist(self) -> None:
        # Atomic, because threads of a handler may race.
        if self.used.setdefault(self.terms.name, self) is not self:
            raise UsageError(f"{self.where}: this name was used before in this attempt; names tell sub-steps apart")

    def decide(self) -> None:
        """Decide whether to call, and what to do about a call that may have been made."""
        memo, times = self.memo, self.rejections
        if self.again and times and times % self.terms.rejections == 0:
            raise RejectedTooOften(f"{self.where}: its answer was rejected {times} times, and is not bought again")
        if memo is None or memo.state != "intended":
            return
        if self.terms.on_doubt == "hold":
            raise CallInDoubt(
                f"{self.where}: the call was begun and never recorded, so it may have been made; it is not repeated until "
                f"a person has said what became of it: holdfast why {shlex.quote(self.lease.key)}"
            )
        if not self.spec.stands(memo.version):
            self.doubt = f"called again by version {self.spec.version}"
        else:
            self.doubt = "called again" if self.terms.on_doubt == "retry" else "the provider knew nothing, called again"

    @property
    def asks_about(self) -> str | None:
        """The key of a call in doubt, if the provider is to be asked about it."""
        memo = self.memo
        if memo is None or memo.state != "intended" or not callable(self.terms.on_doubt):
            return None
        return memo.idempotency_key if self.spec.stands(memo.version) else None

    def check_cap(self, expected: int) -> None:
        """Raise if a call that is about to be made would exceed what one item may cost at this stage."""
        most = self.spec.max_cost
        if most is None:
            return
        spent = self.paid_beside + sum(
            memo.cost or 0 if memo.state != "intended" else memo.estimate or 0
            for name, memo in self.lease.memos.items()
            if name != self.terms.name or memo.rejections
        )
        if spent + expected > most:
            raise Permanent(
                f"{self.where}: the stage may cost {spoken(most)} per item: {spoken(spent)} are spent, and "
                f"{spoken(expected)} more would be too much; the call was not made"
            )

    def write(self, state: str, **more: Any) -> MemoWrite:
        version = _version(self.memo, self.spec) if state == "intended" else self.spec.version
        return MemoWrite(self.lease, self.terms.name, state, version, self.key, **more)


def known(lease: Lease, spec: StageSpec, name: str) -> Memo | None:
    """What earlier attempts recorded, except results of a version whose results are no longer valid. A call in doubt
    counts in any version, because it may have been made.
    """
    memo = lease.memos.get(name)
    return memo if memo is None or memo.state == "intended" or spec.stands(memo.version) else None


def key_of(lease: Lease, spec: StageSpec, name: str) -> str:
    """The idempotency key of a call for one item: the recorded one, unless the next call is a different one."""
    memo = known(lease, spec, name)
    if memo is not None and memo.state != "rejected" and spec.stands(memo.version):
        return memo.idempotency_key
    return idempotency_key(lease, name, spec.version, 0 if memo is None else memo.rejections)


def key_of_all(leases: Sequence[Lease], spec: StageSpec, name: str) -> str:
    """The idempotency key of a call for several items: it differs for other items or another order."""
    keys = []
    for lease in leases:
        memo = known(lease, spec, name)
        keys.append(idempotency_key(lease, name, _version(memo, spec), 0 if memo is None else memo.rejections))
    return keys[0] if len(keys) == 1 else codec.digest_of(" ".join(keys).encode())


def _version(memo: Memo | None, spec: StageSpec) -> str:
    """The version a call belongs to: a call in doubt is repeated under its own version if that is still valid."""
    in_doubt = memo is not None and memo.state == "intended" and spec.stands(memo.version)
    return memo.version if memo is not None and in_doubt else spec.version
