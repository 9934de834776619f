"""A paid call as the ledger knows it, and what it weighs: what was charged, and what may have been. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Any, NamedTuple

from holdfast.errors import UsageError, ValueRefused
from holdfast.model import codec

#: What a model may be called.
MAX_MODEL = 200


class Paid(StrEnum):
    """What is known of a call."""

    INTENDED = "intended"  # about to be made, or under way
    DONE = "done"  # charged, and its answer is recorded
    REJECTED = "rejected"  # charged, and its answer was refused
    DOUBTFUL = "doubtful"  # it may have been charged: nobody knows
    NOT_CHARGED = "not_charged"  # known to be free


CHARGED = frozenset({Paid.DONE, Paid.REJECTED})


class CallFacts(NamedTuple):
    """What a handler says about a call beside its price."""

    model: str = ""
    tokens_in: int = 0
    tokens_out: int = 0
    #: All of it, as JSON text.
    text: str = "{}"

    @classmethod
    def read(cls, facts: Mapping[str, Any] | None, *, where: str) -> CallFacts:
        if not facts:
            return NO_FACTS
        if not isinstance(facts, Mapping):
            raise UsageError(f'{where}: facts {facts!r} are not a mapping; write facts={{"model": "m", "tokens_in": 812}}')
        try:
            text = codec.encode(dict(facts))
        except ValueRefused as error:
            raise UsageError(f"{where}: facts: {error}") from None
        kept = codec.decode(text)
        model = kept.get("model", "")
        if not isinstance(model, str) or len(model) > MAX_MODEL:
            raise UsageError(f"{where}: facts: model {str(model)[:50]!r} is not a text of up to {MAX_MODEL} characters")
        return cls(model, _tokens(kept, "tokens_in", where), _tokens(kept, "tokens_out", where), text)


NO_FACTS = CallFacts()


class PaidCall(NamedTuple):
    """One row of the ledger. The amount is what it cost or, while that is not known, what it was expected to cost."""

    id: int
    stage: int
    item: int
    #: Of the sub-step; empty for an amount that a handler reported with `ctx.cost`.
    name: str
    state: str
    lease: int
    life: int
    amount: int
    resource: str
    model: str
    tokens_in: int
    tokens_out: int
    facts: str
    #: In the zone of its resource, counted from 1970.
    day: int
    at: int
    reason: str | None = None
    value: str | None = None

    @property
    def charged(self) -> int:
        return self.amount if self.state in CHARGED else 0

    @property
    def in_doubt(self) -> int:
        return self.amount if self.state == Paid.DOUBTFUL else 0

    def sums(self) -> tuple[int, int, int, int, int, int]:
        """Payments, amount, doubts, amount in doubt, tokens in and out: what it adds to the sums of its day."""
        if self.state in CHARGED:
            return int(self.amount > 0), self.amount, 0, 0, self.tokens_in, self.tokens_out
        return (0, 0, 1, self.amount, 0, 0) if self.state == Paid.DOUBTFUL else (0, 0, 0, 0, 0, 0)


def _tokens(facts: Mapping[str, Any], name: str, where: str) -> int:
    n = facts.get(name, 0)
    if isinstance(n, bool) or not isinstance(n, int) or not 0 <= n < 2**53:
        raise UsageError(f"{where}: facts: {name} {n!r} is not a whole number of zero or more")
    return n
