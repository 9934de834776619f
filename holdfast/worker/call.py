"""A call of a handler: the leases it serves, and who may say how it ended."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence

import msgspec

from holdfast.engine.claim import Lease
from holdfast.engine.finish import Finished
from holdfast.model.stage import StageSpec
from holdfast.worker.context import Context


class Call(msgspec.Struct, eq=False, gc=False):
    """One call of a handler: for one item, or for a batch."""

    pipeline: str
    spec: StageSpec
    leases: list[Lease]
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

    def end(self) -> bool:
        """True for the first who says how this call ended: the handler, a timeout or a shutdown. The others are late."""
        try:
            self._end.pop()
        except IndexError:
            return False
        return True

    def close(self) -> None:
        """Nothing more may be done through the context, whoever still has it."""
        for context in self.contexts:
            context.close()

    @property
    def goes_first(self) -> bool:
        return self.start_by is not None

    @property
    def is_over(self) -> bool:
        return not self._end

    def times_us(self) -> tuple[int, int]:
        """How long it has run, and how long after the leases were granted it began."""
        return int((time.monotonic() - self.started) * 1e6), int((self.started - self.granted) * 1e6)


def calls_of(pipeline: str, spec: StageSpec, leases: list[Lease], granted: float, start_by: float | None) -> list[Call]:
    """The calls that serve these leases of one stage: one for each, or one for each batch."""
    if spec.batch is None:
        return [Call(pipeline, spec, [lease], granted, 0.0, start_by) for lease in leases]
    size = spec.batch
    together = [lease for lease in leases if not lease.alone]
    groups = [together[at : at + size] for at in range(0, len(together), size)]
    groups += [[lease] for lease in leases if lease.alone]
    return [Call(pipeline, spec, group, granted, 0.0, start_by) for group in groups]


#: Pipeline and stage by stage number: what a worker claims.
Offer = Mapping[int, tuple[str, StageSpec]]


def versions_of(offer: Offer) -> dict[int, str]:
    """Which version of its code a worker has for each stage it offers."""
    return {number: spec.version for number, (_, spec) in offer.items()}


# What whoever runs calls is given, be it an event loop, threads or processes.

#: What a call came to.
Report = Callable[[Call, list[Finished]], None]
#: Whether a call that waited may begin now.
MayStart = Callable[[Call], bool]
#: Told that there is nothing left to run, and how to learn whether the thread is free for something else; True if it is
#: worth looking again.
OutOfWork = Callable[[Callable[[], bool]], bool]
