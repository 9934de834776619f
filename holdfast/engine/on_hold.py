"""Hold: open work is set apart until what it waits for is there: a person's word, also about a paid call in doubt, a price
that somebody accepts, or a worker with the right version of its code. No claim sees it; `retry` lets it run, `cancel` sets it
aside.

Work that is to be done again by today's version goes on hold while a worker lives that would do it with another one. It
is claimed from there by workers whose version is today's, or one that today's is compatible with. Which version that is,
is nowhere written down with the work: it is always the one that is registered.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import groupby
from typing import Any, Literal, NamedTuple

from holdfast.engine.claim import Lease
from holdfast.engine.finish import FinishedAttempt, end_leases, record_costs, record_user_events
from holdfast.engine.layout import layout
from holdfast.engine.release import release
from holdfast.engine.settle import settle
from holdfast.engine.strays import without_strays
from holdfast.model import codec
from holdfast.model.layout import StageRow
from holdfast.model.states import Rerun, State
from holdfast.store import Transaction

#: What releases it.
HoldKind = Literal["person", "doubt", "price", "version"]

ANOTHER_VERSION = "to be done again by the registered version of its code, while a worker with another one is alive"


class Outdated(NamedTuple):
    """A living worker that offers a stage with another version than the registered one."""

    worker: str
    #: None for a worker of a holdfast that does not tell.
    version: str | None


def hold(tx: Transaction, stage: int, items: Sequence[int], kind: HoldKind, reason: str, **facts: Any) -> int:
    """Put those of the items that wait at a stage on hold; return how many. The facts go into the events."""
    held = _set_apart(tx, stage, items, kind, reason)
    pipeline = layout(tx).stages[stage].pipeline
    for item in held:
        tx.record("held", pipeline=pipeline, item=item, stage=stage, kind=kind, reason=reason, **facts)
    return len(held)


def hold_in_doubt(tx: Transaction, finished: Sequence[FinishedAttempt]) -> None:
    """Put work on hold whose attempts came upon paid calls in doubt that a person is to decide about. They are refunded."""
    ordered = sorted(finished, key=lambda one: (one.lease.stage, one.lease.id))
    for stage, same in groupby(ordered, key=lambda one: one.lease.stage):
        ended = end_leases(tx, stage, list(same))
        record_costs(tx, stage, ended)
        record_user_events(tx, stage, ended)
        settle(tx, stage, ended)
        tx.run_rows(
            "enter_held",
            [
                (
                    stage,
                    one.lease.item,
                    "doubt",
                    one.error,
                    one.lease.attempt - 1,
                    one.lease.alone,
                    one.lease.rerun,
                    tx.now,
                )
                for one in ended
            ],
        )
        tx.count(stage, State.ON_HOLD, len(ended))
        pipeline = layout(tx).stages[stage].pipeline
        for one in ended:
            tx.record("held", pipeline=pipeline, item=one.lease.item, stage=stage, kind="doubt", reason=one.error)


def outdated_workers(tx: Transaction, stage: StageRow) -> list[Outdated]:
    """Who would do the work of a stage with another version of its code than this."""
    found = []
    for name, stages, versions in tx.run("living_workers", now=tx.steady, clock=tx.store.driver.clock_name):
        version = codec.stored(versions, {}).get(str(stage.id))
        if stage.id in codec.stored(stages, []) and not stage.stands(version):
            found.append(Outdated(name, version))
    return found


def spoken_of(outdated: Sequence[Outdated]) -> str:
    """Who they are, in a sentence: worker 'a' still runs version 1."""
    by_version: dict[str, list[str]] = {}
    for one in outdated:
        by_version.setdefault(f"version {one.version}" if one.version else "an unknown version", []).append(one.worker)
    return "; ".join(
        f"{'workers' if len(names) > 1 else 'worker'} {', '.join(map(repr, names))} still "
        f"{'run' if len(names) > 1 else 'runs'} {version}"
        for version, names in by_version.items()
    )


def hold_for_version(tx: Transaction, stage: int, items: Sequence[int]) -> None:
    """Keep work that waits to be done again by today's version from workers that have another one."""
    if items and outdated_workers(tx, layout(tx).stages[stage]):
        hold(tx, stage, items, "version", ANOTHER_VERSION)


def refuse(tx: Transaction, stage: int, leases: Sequence[Lease]) -> list[Lease]:
    """What a worker with another version may keep of what it has claimed. The rest, to be done again by today's version, is
    put on hold for somebody who has it."""
    wrong = [lease for lease in leases if lease.rerun == Rerun.WAVE]
    if wrong:
        release(tx, wrong)
        hold(tx, stage, [lease.item for lease in wrong], "version", ANOTHER_VERSION)
    return [lease for lease in leases if lease.rerun != Rerun.WAVE]


@contextmanager
def let_in(tx: Transaction, stage: int, most: int) -> Iterator[None]:
    """Within it, a claim finds up to `most` items that are on hold for today's version, too. What it leaves stays on hold,
    and nobody else has seen it waiting."""
    held = [(item, stage, *rest) for item, *rest in tx.run("take_held_for_version", stage=stage, most=most)]
    taken = without_strays(tx, "holds", held, ("item", "stage", "attempts", "alone", "rerun")) if held else []
    tx.run_rows("enter_waiting", taken, since=tx.now)
    _recount(tx, stage, State.ON_HOLD, State.PENDING, len(taken))
    yield
    _set_apart(tx, stage, [item for item, *_ in taken], "version", ANOTHER_VERSION)


def _set_apart(tx: Transaction, stage: int, items: Sequence[int], kind: HoldKind, reason: str) -> list[int]:
    taken = tx.run("take_waiting", stage=stage, items=list(items)) if items else []
    rows = [(stage, item, kind, reason, attempts, alone, rerun, tx.now) for item, attempts, alone, rerun in taken]
    tx.run_rows("enter_held", rows)
    _recount(tx, stage, State.PENDING, State.ON_HOLD, len(rows))
    return [item for item, *_ in taken]


def _recount(tx: Transaction, stage: int, before: State, after: State, n: int) -> None:
    tx.count(stage, before, -n)
    tx.count(stage, after, n)
