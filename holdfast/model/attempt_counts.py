"""Attempts of a stage that ended within some time: how many with which outcome, how long they ran, how long they had waited."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

import msgspec
from msgspec.structs import replace

from holdfast.clock import SECOND

MINUTE_US = 60 * SECOND
#: So many groups are kept with a row.
MOST_GROUPS = 50


class AttemptCounts(msgspec.Struct):
    """How many attempts ended how, and how many took so long: durations are counted in buckets (`duration_buckets`)."""

    outcomes: dict[str, int] = msgspec.field(default_factory=Counter)
    run: dict[int, int] = msgspec.field(default_factory=Counter)
    #: From the moment the work was ready until it was claimed.
    wait: dict[int, int] = msgspec.field(default_factory=Counter)
    #: How many failed of which cause, by error group: of the most frequent ones only, in case no failure is like another.
    groups: dict[str, int] = msgspec.field(default_factory=Counter)

    @classmethod
    def read(cls, text: str) -> AttemptCounts | None:
        """As it is stored; None if something else has written it."""
        try:
            return _DECODER.decode(text)
        except (msgspec.DecodeError, ValueError):
            return None

    def text(self) -> str:
        """As it is stored."""
        groups = self.groups
        if len(groups) > MOST_GROUPS:
            groups = dict(Counter(groups).most_common(MOST_GROUPS))
        return msgspec.json.encode(replace(self, groups=groups)).decode()

    @classmethod
    def sum(cls, several: Iterable[AttemptCounts]) -> AttemptCounts:
        outcomes: Counter[str] = Counter()
        run: Counter[int] = Counter()
        wait: Counter[int] = Counter()
        groups: Counter[str] = Counter()
        for one in several:
            outcomes.update(one.outcomes)
            run.update(one.run)
            wait.update(one.wait)
            groups.update(one.groups)
        return cls(outcomes, run, wait, groups)


_DECODER = msgspec.json.Decoder(AttemptCounts)
