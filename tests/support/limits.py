"""The engine with limits as a test sees it: the harness, and one short call more per operation.

    app = Limited(store, clock)
    app.limited({"rate": "10/s", "burst": 5}, items=20)      # a stage 'work' that uses the resource 'api'
    admitted = app.claim_within_limits(most=10)                            # five leases, and what stood in the way of more
    app.rate_limited(admitted.leases[0], 30)
    assert app.why("k9")["reason"] == "cool_down"

Money is in millionths, as in the engine: CENT and UNIT help.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from holdfast.clock import microseconds
from holdfast.engine import change_limits as tuning
from holdfast.engine import claim_within_limits as claiming
from holdfast.engine import events
from holdfast.engine import limits as telling
from holdfast.engine import pause as pausing
from holdfast.engine.change_limits import Declared
from holdfast.engine.claim import Lease
from holdfast.engine.claim_within_limits import Admitted, Weight
from holdfast.engine.complete import complete
from holdfast.engine.fail import fail
from holdfast.engine.finish_leases import Cost, FinishedAttempt
from holdfast.engine.memos import MemoWrite, remember
from holdfast.engine.selection import Who
from holdfast.engine.why import Why
from holdfast.model import codec
from holdfast.model.layout import PipelineRow
from holdfast.model.states import State
from holdfast.model.tuning import Tuning
from holdfast.store import statements as statements_of_store
from tests.support.harness import App, Shape
from tests.support.together import listening

SECOND = 1_000_000
UNIT = 1_000_000
CENT = UNIT // 100

_LIMITS = Path(statements_of_store.__file__).parent / "sql" / "limits.sql"
#: Statements that only limits need: not those that read the layout, and not the look for pauses that are over.
STATEMENTS = frozenset(re.findall(r"^-- name: (\w+)", _LIMITS.read_text(), re.MULTILINE)) - {
    "read_resources",
    "read_pipeline_states",
    "pauses_to_end",
}


class Limited(App):
    """One store, one pipeline at a time, any number of workers, and resources."""

    def beside(self) -> Limited:
        other = Limited(self.store.another(), self.clock)
        other.name = self.name
        return other

    # Limits ---------------------------------------------------------------------------------------------------------

    def limited(
        self,
        api: Mapping[str, Any] | None = None,
        *,
        items: int = 10,
        stages: Shape | None = None,
        uses: Sequence[str] = ("api",),
        name: str = "p",
        **settings: Any,
    ) -> None:
        """A pipeline whose stages all use these resources, and items k0, k1, … in it."""
        stages = stages or {"work": []}
        only = {stage: {"resources": tuple(uses), **settings} for stage in stages}
        self.pipeline(stages, name=name, only=only)
        self.declare({} if api is None else {"api": api})
        self.add(f"k{n}" for n in range(items))

    def declare(
        self, resources: Mapping[str, Mapping[str, Any]] | None = None, **tunings: Mapping[str, Any]
    ) -> list[str]:
        """What authors say: limits of resources by name, and tunings by name of pipeline."""
        stages = {row.name for row in self.layout().stages.values()}
        read = {name: Tuning.read(name, stages, given) for name, given in tunings.items()}
        said = Declared.of(resources or {}, read)
        return self.store.write(lambda tx: tuning.declare(tx, said), exclusive=True)

    def is_declared(self, resources: Mapping[str, Mapping[str, Any]]) -> bool:
        return self.store.read(lambda tx: tuning.is_declared(tx, Declared.of(resources, {})))

    def tune(self, changes: Mapping[str, Any], *, by: str = "me", reason: str = "") -> dict[str, Any]:
        return self.store.write(lambda tx: tuning.tune(tx, self.name, changes, Who(by, reason)), exclusive=True)

    def pause(self, name: str = "p", *, seconds: float | None = None, reason: str = "", resource: bool = False) -> None:
        until = None if seconds is None else microseconds(seconds)
        self.store.write(
            lambda tx: pausing.pause(
                tx, name, Who("me", reason), None if until is None else tx.now + until, resource=resource
            ),
            exclusive=True,
        )

    def resume(self, name: str = "p", *, resource: bool = False, reason: str = "") -> bool:
        return self.store.write(
            lambda tx: pausing.resume(tx, name, Who("me", reason), resource=resource), exclusive=True
        )

    def end_pauses(self) -> int:
        return self.store.write(pausing.end_pauses, exclusive=True)

    # Attempts -------------------------------------------------------------------------------------------------------

    def admit(
        self,
        most: int = 1,
        *,
        worker: str = "w",
        stage: str = "work",
        money: int = 0,
        units: Mapping[str, float] | None = None,
        weighed: Mapping[str, Weight] | None = None,
    ) -> Admitted:
        """Claim what is allowed; `weighed` are the next items by key, where they differ."""
        who, number = self.worker(worker), self.stage(stage).id
        peeked = None
        if weighed is not None:
            found = {
                key: item
                for item, key, *_ in self.store.read(lambda tx: tx.run("peek_waiting", stage=number, most=1000))
            }
            peeked = [(found[key], weight) for key, weight in weighed.items()]
        weight = Weight(money, units or {})
        admitted = self.store.write(
            lambda tx: claiming.claim_within_limits(tx, who.id, number, most, weight, peeked), slot=who.id
        )
        self._holders.update((lease.id, who.id) for lease in admitted.leases)
        return admitted

    def begin(self, most: int = 1, **more: Any) -> list[Lease]:
        return self.admit(most, **more).leases

    def look(self, stage: str = "work") -> claiming.Blocked | None:
        number = self.stage(stage).id
        return self.store.read(lambda tx: claiming.look(tx, number))

    def end(
        self, lease: Lease, *, used: Mapping[str, float] | None = None, cost: int = 0, resource: str | None = None
    ) -> None:
        """The handler returned, after it had used and paid this."""
        one = FinishedAttempt(
            lease,
            State.DONE,
            "1",
            result="null",
            output_hash=codec.digest(None),
            used=dict(used or {}),
            costs=[Cost(cost, resource)] if cost else [],
        )
        self._finish(one, lambda tx: complete(tx, [one]))

    def end_all(self, *, cost: int = 0) -> int:
        """Begin and end all that is allowed now; how many."""
        count = 0
        while leases := self.begin(50):
            for lease in leases:
                self.end(lease, cost=cost)
            count += len(leases)
        return count

    def rate_limited(self, *leases: Lease, after: float | None = None, delay: float = 0.0, **more: Any) -> None:
        """The provider asked for a pause of `after` seconds, or did not say."""
        facts = {"delay_us": microseconds(delay), "cool_us": 0 if after is None else microseconds(after), **more}
        many = [FinishedAttempt(lease, State.RETRY_LATER, error="429", snooze=True, **facts) for lease in leases]
        self.store.write(lambda tx: fail(tx, many))

    def out_of_credit(self, lease: Lease, error: str = "402", **more: Any) -> None:
        one = FinishedAttempt(lease, State.RETRY_LATER, error=error, snooze=True, out_of_credit=True, **more)
        self._finish(one, lambda tx: fail(tx, [one]))

    def intend(self, lease: Lease, name: str = "call", estimate: int | None = None, **more: Any) -> None:
        """A paid call is about to be made."""
        self._remember(MemoWrite(lease, name, "intended", "1", f"key of {name}", estimate, **more))

    def paid(self, lease: Lease, name: str = "call", cost: int = 0, resource: str | None = None, **more: Any) -> None:
        """A paid call was made, and is recorded."""
        self._remember(MemoWrite(lease, name, "done", "1", f"key of {name}", None, cost, "null", resource, **more))

    def refused(self, lease: Lease, name: str = "call") -> None:
        """The provider refused a paid call: it is free."""
        self._remember(MemoWrite(lease, name, "free", "1", f"key of {name}", reason="429"))

    def reject(self, lease: Lease, name: str = "call") -> None:
        """The recorded answer is no good."""
        value = lease.memos[name].value
        self._remember(MemoWrite(lease, name, "rejected", "1", f"key of {name}", value=value, reason="no good"))

    def paid_all(self, *leases: Lease, cost: int = 10 * CENT) -> None:
        """Paid calls under several leases, recorded together, in this order."""
        memos = [MemoWrite(lease, "call", "done", "1", "key", None, cost, "null") for lease in leases]
        self.store.write(lambda tx: remember(tx, memos))

    # What is there --------------------------------------------------------------------------------------------------

    def limits(self) -> dict[str, dict[str, Any]]:
        return {one["name"]: one for one in self.store.read(telling.limits)}

    def limit(self, name: str = "api") -> dict[str, Any]:
        return self.limits()[name]

    def state_of(self, pipeline: str = "p") -> PipelineRow:
        return self.layout().pipelines[pipeline]

    def why(self, key: str) -> dict[str, Any]:
        return self.store.read(lambda tx: Why(tx, key, self.name).answer())

    def told(self, event: str) -> list[dict[str, Any]]:
        """Events of one kind, with their columns."""
        given = {"event": event, "item": None, "pipeline": None, "since": None, "most": 1000}
        return self.store.read(lambda tx: events.events(tx, after=0, **given))

    def _remember(self, memo: MemoWrite) -> None:
        self.store.write(lambda tx: remember(tx, [memo]))
        assert not memo.lost
        memo.lease.remember(memo.name, memo.kept)


@contextmanager
def statements() -> Iterator[Counter[str]]:
    """Count the statements that are run meanwhile, by name, in every thread."""
    count: Counter[str] = Counter()

    def listener(point: str) -> None:
        if point.startswith("store."):
            count[point.removeprefix("store.")] += 1

    with listening(listener):
        yield count


def over(moments: Sequence[float], rate: float, burst: float) -> float:
    """By how much the worst window is over rate × window + burst; zero or less if none is."""
    ordered = sorted(moments)
    # A window that begins with the i-th and ends with the j-th: j - i + 1 - rate × (t[j] - t[i]) - burst.
    worst, best_start = float("-inf"), float("-inf")
    for number, at in enumerate(ordered):
        best_start = max(best_start, rate * at - number)
        worst = max(worst, number + 1 - rate * at + best_start - burst)
    return worst


__all__ = ["CENT", "SECOND", "STATEMENTS", "UNIT", "Limited", "over", "statements"]
