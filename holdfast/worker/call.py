"""A call of a handler: the leases it serves, and which of several results counts."""

from __future__ import annotations

import math
import time
from collections.abc import Collection, Iterable, Mapping, Sequence

import msgspec

from holdfast.engine.claim import Lease
from holdfast.errors import UsageError
from holdfast.model.did_you_mean import there_are
from holdfast.model.layout import Layout
from holdfast.model.stage import PipelineSpec, StageSpec
from holdfast.runtime.call import Call
from holdfast.worker.context import Context


class StageCall(Call, msgspec.Struct, eq=False, gc=False):
    """One call of a handler: for one item, or for a batch."""

    pipeline: str
    spec: StageSpec
    leases: list[Lease]
    #: The id of the stage.
    kind: int
    #: When the leases arrived in this process, on the monotonic clock.
    granted: float
    started: float = 0.0
    #: The call must not start later than this, because its turn under the rate limit of a resource has passed then.
    #: None if it uses no resource: such a call lets others go first, because they hold shared resources.
    start_by: float | None = None
    abandoned: bool = False
    #: One per lease, once the handler has been called with them.
    contexts: Sequence[Context] = ()
    _end: bytearray = msgspec.field(default_factory=bytearray(1).copy)

    def close(self) -> None:
        """Make the contexts unusable, even if a stray thread still holds one."""
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
        """How long it has been running, and how long after its leases were granted it started."""
        return int((time.monotonic() - self.started) * 1e6), int((self.started - self.granted) * 1e6)


def calls_of(
    pipeline: str, spec: StageSpec, leases: list[Lease], granted: float, start_by: float | None
) -> list[StageCall]:
    """The calls that serve these leases of one stage: one per lease or per batch."""
    kind = leases[0].stage if leases else 0
    if spec.batch is None:
        return [StageCall(pipeline, spec, [lease], kind, granted, 0.0, start_by) for lease in leases]
    size = spec.batch
    together = [lease for lease in leases if not lease.alone]
    groups = [together[at : at + size] for at in range(0, len(together), size)]
    groups += [[lease] for lease in leases if lease.alone]
    return [StageCall(pipeline, spec, group, kind, granted, 0.0, start_by) for group in groups]


#: Pipeline name and stage, by stage id: what a worker claims.
Offer = Mapping[int, tuple[str, StageSpec]]


def offer_of(pipelines: Iterable[PipelineSpec], known: Layout, wanted: Collection[str]) -> Offer:
    """The stages of these pipelines, or those that are wanted: each is named `stage` or `pipeline/stage`."""
    offer: dict[int, tuple[str, StageSpec]] = {}
    seen: set[str] = set()
    for pipeline in pipelines:
        for spec in pipeline.stages:
            names = {spec.name, f"{pipeline.name}/{spec.name}"}
            seen |= names
            row = known.find(pipeline.name, spec.name)
            if row is not None and (not wanted or names.intersection(wanted)):
                offer[row.id] = (pipeline.name, spec)
    if unknown := set(wanted) - seen:
        what = ", ".join(sorted(unknown))
        raise UsageError(f"no pipeline here has the stage {what}; {there_are(min(unknown), sorted(seen))}")
    return offer


def versions_of(offer: Offer) -> dict[int, str]:
    """The version of the code that a worker has for each stage it offers."""
    return {number: spec.version for number, (_, spec) in offer.items()}
