"""A call of a handler: the leases it serves, and who may say how it ended."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence

import msgspec

from holdfast.engine.claim import Lease
from holdfast.model.stage import StageSpec
from holdfast.runtime.call import Call
from holdfast.worker.context import Context


class StageCall(Call, msgspec.Struct, eq=False, gc=False):
    """One call of a handler: for one item, or for a batch."""

    pipeline: str
    spec: StageSpec
    leases: list[Lease]
    #: The number of the stage.
    kind: int
    #: When the leases came into this process, on the process's own steady clock.
    granted: float
    started: float = 0.0
    #: Not to be begun later than this: its place in the pace of a resource is gone then. None where it uses no resource:
    #: such a call lets the others go first, for they hold what everybody shares.
    start_by: float | None = None
    #: Set on a call that took too long and was given up: whoever runs it must not take more work.
    abandoned: bool = False
    #: One for each lease, once the handler has been given them.
    contexts: Sequence[Context] = ()
    #: Whoever takes what is in it says how the call ended. Bytes, which the garbage collector need not look at.
    _end: bytearray = msgspec.field(default_factory=bytearray(1).copy)

    def close(self) -> None:
        """Nothing more may be done through the context, whoever still has it."""
        for context in self.contexts:
            context.close()

    @property
    def goes_first(self) -> bool:
        return self.start_by is not None

    @property
    def label(self) -> str:
        return f"item {self.leases[0].key!r}, stage {self.spec.name!r}"

    @property
    def timeout_seconds(self) -> float | None:
        return self.spec.timeout_seconds

    @property
    def is_single(self) -> bool:
        return self.spec.batch is None

    @property
    def size(self) -> float:
        return math.inf if self.leases[0].alone else len(self.leases)

    def times_us(self) -> tuple[int, int]:
        """How long it has run, and how long after the leases were granted it began."""
        return int((time.monotonic() - self.started) * 1e6), int((self.started - self.granted) * 1e6)


def calls_of(
    pipeline: str, spec: StageSpec, leases: list[Lease], granted: float, start_by: float | None
) -> list[StageCall]:
    """The calls that serve these leases of one stage: one for each, or one for each batch."""
    kind = leases[0].stage if leases else 0
    if spec.batch is None:
        return [StageCall(pipeline, spec, [lease], kind, granted, 0.0, start_by) for lease in leases]
    size = spec.batch
    together = [lease for lease in leases if not lease.alone]
    groups = [together[at : at + size] for at in range(0, len(together), size)]
    groups += [[lease] for lease in leases if lease.alone]
    return [StageCall(pipeline, spec, group, kind, granted, 0.0, start_by) for group in groups]


#: Pipeline and stage by stage number: what a worker claims.
Offer = Mapping[int, tuple[str, StageSpec]]


def versions_of(offer: Offer) -> dict[int, str]:
    """Which version of its code a worker has for each stage it offers."""
    return {number: spec.version for number, (_, spec) in offer.items()}
