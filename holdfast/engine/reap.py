"""Reap: remove dead workers, and free leases without a live worker.

A worker is dead if it sent no heartbeat for a whole lease, or if its process is known to be gone. First its row is deleted, and
with it every right: a late heartbeat finds nothing to renew. Then leases without a worker are freed, a few at a time. The steps
are independent of each other; no state is kept between them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from holdfast.engine import error_groups, ledger
from holdfast.engine.claim import Lease
from holdfast.engine.fan_in import begin_waiting_parents
from holdfast.engine.finish_leases import LOST, FinishedAttempt, save_outcomes
from holdfast.engine.layout import layout
from holdfast.engine.resource_state import lock_resources
from holdfast.engine.stray_rows import without_strays
from holdfast.model.plausible import MOST_ALONE, is_count, is_time
from holdfast.model.retry_or_give_up import after_death
from holdfast.model.states import State
from holdfast.store import Transaction

CHUNK = 100
#: The columns of a freed lease.
FREED = ("id", "item", "stage", "worker", "attempt", "alone", "rerun", "since")


class Reaped(NamedTuple):
    """How many leases were freed, and how many of those were the last attempt."""

    released: int
    exhausted: int


def remove_silent(tx: Transaction, clock: str) -> list[tuple[int, str]]:
    """Declare every worker dead that has sent no heartbeat for a whole lease."""
    return _recorded(tx, tx.run("remove_silent", now=tx.steady, clock=clock), "its heartbeat stopped")


def remove_ended(tx: Transaction, host: str, me: int, is_alive: Callable[[str], bool]) -> list[tuple[int, str]]:
    """Declare every worker on this machine dead whose process is gone, without waiting for its lease."""
    gone = [worker for worker, process in tx.run("neighbours", host=host, id=me) if not is_alive(process)]
    return _recorded(tx, tx.run("remove_workers", ids=gone) if gone else [], "its process is gone")


def reap(tx: Transaction, most: int = CHUNK) -> Reaped:
    """Free leases without a live worker, up to `most` of them. Leases of isolated work are freed all at once, because whether
    their worker held other work can only be seen until that is freed."""
    known = layout(tx)
    if known.resources:
        # Resources before leases, in the same order as a worker that completes work.
        lock_resources(tx, [stage for (stage,) in tx.run("free_stages") if stage in known.stages])
    freed = tx.run("free_leases", most=most)
    tx.rows = len(freed)
    rows = without_strays(tx, "leases", freed, FREED)
    waiting: list[tuple[Any, ...]] = []
    lost: dict[int, list[FinishedAttempt]] = {}
    exhausted = 0
    for id_, item, stage, worker, attempt, alone, rerun, since, company in map(_plausible, rows):
        row = known.stages[stage]
        tx.count(stage, State.IN_PROGRESS, -1)
        then = after_death(attempt, row.max_attempts, alone, bool(company))
        error = f"the worker that ran attempt {attempt} died"
        lease = Lease(id_, item, stage, attempt, alone, rerun, "", "", since)
        finished = FinishedAttempt(lease, then.state, row.version, error=error, took_us=max(0, tx.now - since))
        lost.setdefault(stage, []).append(finished)
        tx.record(
            "lease_expired", pipeline=row.pipeline, item=item, stage=stage, lease=id_, worker=worker, attempt=attempt
        )
        if then.state is State.EXHAUSTED:
            error_groups.find_causes([finished])
            save_outcomes(tx, stage, [finished], timed=False)
            error_groups.enter_attempts(tx, stage, [finished])
            tx.record("exhausted", pipeline=row.pipeline, item=item, stage=stage, attempt=attempt, error=error)
            begin_waiting_parents(tx, stage, [item])
            exhausted += 1
        else:
            waiting.append((item, stage, then.attempts, then.alone, rerun))
            tx.count(stage, State.PENDING, 1)
    ledger.doubt(tx, [(id_, item, stage) for id_, item, stage, *_ in rows], "the worker died during the call")
    tx.run_rows("enter_waiting", waiting, since=tx.now)
    if waiting:
        tx.tell_idle_workers(*{row[1] for row in waiting})
    tx.ended.extend((stage, LOST, attempts) for stage, attempts in lost.items())
    return Reaped(len(freed), exhausted)


def _plausible(row: Sequence[Any]) -> Sequence[Any]:
    """A lease with numbers that can be true. Others may not fit into the table that it goes to, and keep all others from it."""
    id_, item, stage, worker, attempt, alone, rerun, since, company = row
    return (
        *(id_, item, stage, worker),
        attempt if is_count(attempt) else 1,
        alone if 0 <= alone <= MOST_ALONE else 0,
        *(rerun, since if is_time(since) else 0, company),
    )


def _recorded(tx: Transaction, rows: list[tuple[Any, ...]], why: str) -> list[tuple[int, str]]:
    for worker, name in rows:
        tx.record("worker_died", worker=worker, name=name, why=why)
    return [(worker, name) for worker, name in rows]
