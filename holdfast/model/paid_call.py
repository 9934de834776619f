"""A paid call as the ledger knows it: what was charged, and what may have been. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Any, NamedTuple

from holdfast.errors import UsageError, ValueRefused
from holdfast.model import codec
from holdfast.model.money import shares

#: What the name of a model may be.
MAX_MODEL = 200

#: What a call has read and written; and parts of these: what was read from a cache, and what was reasoning.
TOKENS = ("tokens_in", "tokens_out", "tokens_cached", "tokens_reasoning")
#: Facts that are shared among the items of a call. What was written to a cache is kept with the others, and not summed.
SHARED = (*TOKENS, "tokens_cache_write")

#: In place of a resource: paid by an earlier program, and not counted against a budget.
IMPORTED = "(imported)"


class Paid(StrEnum):
    """What is known of a call."""

    INTENDED = "intended"  # about to be made, or under way
    DONE = "done"  # charged, and its answer is recorded
    REJECTED = "rejected"  # charged, and its answer was refused
    DOUBTFUL = "doubtful"  # it may have been charged
    NOT_CHARGED = "not_charged"  # known to be free


CHARGED = frozenset({Paid.DONE, Paid.REJECTED})


class CallFacts(NamedTuple):
    """What a handler says about a call besides its price."""

    model: str = ""
    tokens_in: int = 0
    tokens_out: int = 0
    tokens_cached: int = 0
    tokens_reasoning: int = 0
    #: All of it, as JSON text.
    text: str = "{}"

    @classmethod
    def read(cls, facts: Mapping[str, Any] | None, *, where: str) -> CallFacts:
        if not facts:
            return NO_FACTS
        if not isinstance(facts, Mapping):
            raise UsageError(
                f'{where}: facts {facts!r} are not a mapping; write facts={{"model": "m", "tokens_in": 812}}'
            )
        try:
            text = codec.encode(dict(facts))
        except ValueRefused as error:
            raise UsageError(f"{where}: facts: {error}") from None
        kept = codec.decode(text)
        model = kept.get("model", "")
        if not isinstance(model, str) or len(model) > MAX_MODEL:
            raise UsageError(f"{where}: facts: model {str(model)[:50]!r} is not a text of up to {MAX_MODEL} characters")
        counted = {name: _tokens(kept, name, where) for name in SHARED}
        return cls(model, **{name: counted[name] for name in TOKENS}, text=text)

    @property
    def tokens(self) -> tuple[int, int, int, int]:
        """In the order of `TOKENS`."""
        return self.tokens_in, self.tokens_out, self.tokens_cached, self.tokens_reasoning

    def shares(self, n: int) -> list[CallFacts]:
        """The same for each of several items, with its share of the tokens."""
        if n == 1:
            return [self]
        told = codec.decode(self.text)
        counted = {name: shares(of_all, n) for name, of_all in zip(TOKENS, self.tokens, strict=True)}
        in_text = {name: shares(told[name], n) for name in SHARED if told.get(name)}
        return [
            CallFacts(self.model, **_part(counted, nth), text=codec.encode({**told, **_part(in_text, nth)}))
            for nth in range(n)
        ]


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
    tokens_cached: int
    tokens_reasoning: int
    facts: str
    #: In the zone of its resource, counted from 1970.
    day: int
    at: int
    reason: str | None = None
    value: str | None = None
    #: The first row of a call for several items, each of which bears a share; None for a call for one item.
    share_of: int | None = None

    @property
    def call(self) -> int:
        """The row that stands for the whole call."""
        return self.id if self.share_of is None else self.share_of

    @property
    def charged(self) -> int:
        return self.amount if self.state in CHARGED else 0

    @property
    def in_doubt(self) -> int:
        return self.amount if self.state == Paid.DOUBTFUL else 0

    @property
    def tokens(self) -> tuple[int, int, int, int]:
        """In the order of `TOKENS`."""
        return self.tokens_in, self.tokens_out, self.tokens_cached, self.tokens_reasoning

    def sums(self) -> tuple[int, ...]:
        """Payments, amount, doubts, amount in doubt, and the four numbers of tokens: what it adds to the sums of its day. A
        call is one payment, or one doubt, however many items share it."""
        one = int(self.call == self.id)
        if self.state in CHARGED:
            return one if self.amount else 0, self.amount, 0, 0, *self.tokens
        return (0, 0, one, self.amount, 0, 0, 0, 0) if self.state == Paid.DOUBTFUL else (0,) * 8


def _part(shared: Mapping[str, Sequence[int]], nth: int) -> dict[str, int]:
    return {name: parts[nth] for name, parts in shared.items()}


def _tokens(facts: Mapping[str, Any], name: str, where: str) -> int:
    n = facts.get(name)
    if n is None:
        return 0
    if isinstance(n, bool) or not isinstance(n, int) or not 0 <= n < 2**53:
        raise UsageError(f"{where}: facts: {name} {n!r} is not a whole number of zero or more")
    return n
