"""Attempts of a stage that ended within some time: how many with which outcome, how long they ran, how long they had waited."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

import msgspec

from holdfast.clock import SECOND

MINUTE_US = 60 * SECOND


class AttemptCounts(msgspec.Struct):
    """How many attempts ended how, and how many took so long: durations are counted in buckets (`duration_buckets`)."""

    outcomes: dict[str, int] = msgspec.field(default_factory=Counter)
    run: dict[int, int] = msgspec.field(default_factory=Counter)
    #: From the moment the work was ready until it was claimed.
    wait: dict[int, int] = msgspec.field(default_factory=Counter)

    @classmethod
    def read(cls, text: str) -> AttemptCounts | None:
        """As it is stored; None if something else has written it."""
        try:
            return _DECODER.decode(text)
        except (msgspec.DecodeError, ValueError):
            return None

    def text(self) -> str:
        """As it is stored."""
        return msgspec.json.encode(self).decode()

    @classmethod
    def sum(cls, several: Iterable[AttemptCounts]) -> AttemptCounts:
        outcomes: Counter[str] = Counter()
        run: Counter[int] = Counter()
        wait: Counter[int] = Counter()
        for one in several:
            outcomes.update(one.outcomes)
            run.update(one.run)
            wait.update(one.wait)
        return cls(outcomes, run, wait)


_DECODER = msgspec.json.Decoder(AttemptCounts)
