"""Early cutoff: when a stage has run again, decide which later stages of the item must run again, and stop where nothing
changed.

Attempts that work from an old output lose their lease. Then the next stages that must run again are sent back: those whose
input has changed and, in a reprocess of all that is stale, those made by an outdated version, even behind stages that are
kept. A stage waits for every earlier stage that is still to run, so each runs once and in order.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

from holdfast.engine import ledger
from holdfast.engine.checkpoints import ItemPicture, pictures_of
from holdfast.engine.fan_in import begin_if_ready
from holdfast.engine.finish_leases import FinishedAttempt
from holdfast.engine.layout import layout
from holdfast.engine.on_hold import hold_for_version
from holdfast.engine.reopen import Reopened, reopen
from holdfast.model.layout import Layout, StageRow
from holdfast.model.states import PASSED, Rerun, State
from holdfast.store import Transaction


def changed_outputs(tx: Transaction, stage: int, again: Sequence[FinishedAttempt]) -> set[int]:
    """The items whose stage ran again with another output than the outcome it is about to replace."""
    if not again:
        return set()
    found = tx.run("read_outcome_states", stage=stage, items=[one.lease.item for one in again])
    old = {item: output for item, state, output, *_ in found if state in PASSED}
    return {one.lease.item for one in again if old.get(one.lease.item, "none") != one.output_hash}


def go_on(tx: Transaction, stage: int, again: Sequence[FinishedAttempt], changed: Collection[int]) -> None:
    """Begin the stages after one that ran again if they never began, and run them again if they must."""
    known = layout(tx)
    following = known.successors(stage)
    nearest = [known.stages[number] for number in (*following.simple, *following.checked)]
    if not again or not nearest:
        return
    reruns = {one.lease.item: Rerun(one.lease.rerun) for one in again}
    for row in nearest:
        begin_if_ready(tx, row.id, list(reruns))
        _take_back(tx, row, sorted(changed))
    chosen: dict[Rerun, Reopened] = {}
    for picture in pictures_of(tx, list(reruns), known.stages[stage].pipeline_name):
        rerun = reruns[picture.item]
        near = {row.id for row in nearest} if picture.item in changed else set()
        for row in _next_to_run(known, picture, stage, near, rerun):
            made = picture.made[row.id]
            chosen.setdefault(rerun, {})[picture.item, row.id] = (State(made.state), made.version, made.type)
    for rerun, was in sorted(chosen.items()):
        reopened = reopen(tx, was, rerun)
        for item, number in reopened:
            tx.record(
                "reopened",
                pipeline=known.stages[number].pipeline,
                item=item,
                stage=number,
                was=str(was[item, number][0]),
            )
        for number in {number for _, number in reopened} if rerun is Rerun.WAVE else ():
            hold_for_version(tx, number, [item for item, stage in reopened if stage == number])
    tx.tell_idle_workers()


def _next_to_run(
    known: Layout, picture: ItemPicture, stage: int, near: Collection[int], rerun: Rerun
) -> Iterator[StageRow]:
    """The later stages that must run again now: nothing before them is still to run."""
    behind = {stage}
    unsettled: set[int] = set()
    for row in known.of_pipeline(known.stages[stage].pipeline_name):
        before = known.parents(row.id)
        waits = any(parent in unsettled for parent in before)
        due = False
        if any(parent in behind for parent in before):
            behind.add(row.id)
            due = row.id not in picture.open and _is_due(row, picture, before, row.id in near, rerun)
        if due and not waits:
            yield row
        if due or waits or row.id in picture.open:
            unsettled.add(row.id)


def _is_due(row: StageRow, picture: ItemPicture, before: Sequence[int], near: bool, rerun: Rerun) -> bool:
    """`near`: it directly follows a stage whose output has changed."""
    made = picture.made.get(row.id)
    # What a person has cancelled stays cancelled.
    if made is None or made.state == State.CANCELLED or not picture.has_all(before):
        return False
    if near and (not made.passed or made.input_hash is None):
        return True
    return made.passed and (
        picture.has_other_input(row, before) or (rerun is Rerun.WAVE and not row.stands(made.version))
    )


def _take_back(tx: Transaction, stage: StageRow, items: list[int]) -> None:
    """Revoke leases on work made from an old output; it waits again. Its memos say nothing about the new output, and are
    removed."""
    if not items:
        return
    revoked = tx.run("revoke_leases", stage=stage.id, items=items)
    ledger.doubt(tx, [(lease, item, stage.id) for item, *_, lease in revoked], "its input changed during the call")
    rows = [(item, stage.id, attempt - 1, alone, rerun) for item, attempt, alone, rerun, _ in revoked]
    tx.run_rows("enter_waiting", rows, since=tx.now)
    tx.count(stage.id, State.IN_PROGRESS, -len(revoked))
    tx.count(stage.id, State.PENDING, len(revoked))
    for item, *_ in revoked:
        tx.record("superseded", pipeline=stage.pipeline, item=item, stage=stage.id)
    for item, name, state, key in tx.run("forget_memos", stage=stage.id, items=items):
        if state == "intended":
            tx.record(
                "in_doubt",
                pipeline=stage.pipeline,
                item=item,
                stage=stage.id,
                memo=name,
                decided="superseded",
                idempotency_key=key,
            )
