"""On hold: open work that no worker claims until a person releases it, decides about a paid call in doubt or accepts its price,
or until a worker with the registered version takes it. `retry` releases it, `cancel` cancels it.

Work to be done again by the registered version goes on hold while a live worker would do it with another one. It is claimed
from there by workers with the registered version, or one it is compatible with. The version is not stored with the work: it is
always the registered one.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import groupby
from typing import Any, Literal, NamedTuple

from holdfast.engine.claim import Lease
from holdfast.engine.finish_leases import HANDED_BACK, FinishedAttempt, end_leases, record_costs, record_user_events
from holdfast.engine.hand_back import release
from holdfast.engine.layout import layout
from holdfast.engine.resource_feedback import settle
from holdfast.engine.stray_rows import without_strays
from holdfast.model import codec, shapes
from holdfast.model.layout import StageRow
from holdfast.model.states import Rerun, State
from holdfast.store import Transaction

#: What releases it.
HoldKind = Literal["person", "doubt", "price", "version"]

ANOTHER_VERSION = "to be done again by the registered version of its code, while a worker with another one is alive"


class Outdated(NamedTuple):
    """A live worker that offers a stage with another version than the registered one."""

    worker: str
    #: None for a worker of an older holdfast, which does not report it.
    version: str | None


def hold(tx: Transaction, stage: int, items: Sequence[int], kind: HoldKind, reason: str, **facts: Any) -> int:
    """Put the items that wait at a stage on hold; return how many. The facts go into the events."""
    held = _set_apart(tx, stage, items, kind, reason)
    pipeline = layout(tx).stages[stage].pipeline
    for item in held:
        tx.record("held", pipeline=pipeline, item=item, stage=stage, kind=kind, reason=reason, **facts)
    return len(held)


def hold_in_doubt(tx: Transaction, finished: Sequence[FinishedAttempt]) -> None:
    """Put work on hold until a person decides about its paid calls in doubt. The attempts are refunded."""
    ordered = sorted(finished, key=lambda one: (one.lease.stage, one.lease.id))
    for stage, same in groupby(ordered, key=lambda one: one.lease.stage):
        ended = end_leases(tx, stage, list(same))
        tx.ended.append((stage, HANDED_BACK, ended))
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
    """Live workers that would run a stage with another version of its code."""
    found = []
    for name, stages, versions in tx.run("living_workers", now=tx.steady, clock=tx.store.driver.clock_name):
        version = codec.stored(versions, {}, shapes.VERSIONS).get(stage.id)
        if stage.id in codec.stored(stages, [], shapes.NUMBERS) and not stage.stands(version):
            found.append(Outdated(name, version))
    return found


def spoken_of(outdated: Sequence[Outdated]) -> str:
    """These workers in a sentence: worker 'a' still runs version 1."""
    by_version: dict[str, list[str]] = {}
    for one in outdated:
        by_version.setdefault(f"version {one.version}" if one.version else "an unknown version", []).append(one.worker)
    return "; ".join(
        f"{'workers' if len(names) > 1 else 'worker'} {', '.join(map(repr, names))} still "
        f"{'run' if len(names) > 1 else 'runs'} {version}"
        for version, names in by_version.items()
    )


def hold_for_version(tx: Transaction, stage: int, items: Sequence[int]) -> None:
    """Keep work that waits for the registered version from workers with another one."""
    if items and outdated_workers(tx, layout(tx).stages[stage]):
        hold(tx, stage, items, "version", ANOTHER_VERSION)


def refuse(tx: Transaction, stage: int, leases: Sequence[Lease]) -> list[Lease]:
    """The leases that a worker with another version may keep. Work to be done again by the registered version is put on hold
    for a worker that has it."""
    wrong = [lease for lease in leases if lease.rerun == Rerun.WAVE]
    if wrong:
        release(tx, wrong)
        hold(tx, stage, [lease.item for lease in wrong], "version", ANOTHER_VERSION)
    return [lease for lease in leases if lease.rerun != Rerun.WAVE]


@contextmanager
def let_in(tx: Transaction, stage: int, most: int) -> Iterator[None]:
    """Within it, a claim also finds up to `most` items that are on hold for the registered version. What it does not take stays
    on hold, and no other worker sees it waiting."""
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
