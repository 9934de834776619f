"""One transaction of a worker: it ends attempts and claims the next ones."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from contextlib import nullcontext
from typing import NamedTuple

from holdfast.engine.claim import Lease, claim, claim_at_once
from holdfast.engine.claim_within_limits import Blocked, claim_within_limits
from holdfast.engine.complete import complete
from holdfast.engine.fail import fail
from holdfast.engine.finish_leases import FinishedAttempt, count_saved, named_resources
from holdfast.engine.hand_back import release
from holdfast.engine.layout import layout
from holdfast.engine.on_hold import hold_in_doubt, let_in, refuse
from holdfast.engine.resource_state import lock_resources
from holdfast.model.layout import Layout
from holdfast.model.states import FINISHED, State
from holdfast.store import AtOnce, Store, Transaction
from holdfast.worker.commit.claim_planner import ClaimOrder, ClaimPlanner


class Settled(NamedTuple):
    """The outcome of a transaction."""

    at: int
    began: float
    moved: list[Lease]
    claimed: dict[int, list[Lease]]
    #: Stages that had less work than was asked for, and stages whose resources allowed no more.
    dry: list[int]
    blocked: dict[int, Blocked]
    #: Stages that were skipped because the decision to claim from them is outdated.
    undecided: list[int]
    #: Attempts left for the next transaction, because this one took too long.
    left: list[FinishedAttempt]
    #: Stages that were skipped because their calls would start too late for their rate limit.
    late: list[int]
    #: The attempts that it ended: stage, outcome, attempts.
    ended: Sequence[tuple[int, str, Sequence[FinishedAttempt]]] = ()


class SettleAndClaim:
    """Runs the transactions of one worker. The worker's id may change between them."""

    def __init__(self, store: Store, orders: ClaimPlanner) -> None:
        self._store = store
        self._orders = orders

    def run(
        self,
        tx: Transaction,
        worker: int,
        finished: list[FinishedAttempt],
        orders: Sequence[ClaimOrder],
        *,
        goes_on: bool,
        seconds: float,
    ) -> Settled:
        """End these attempts and carry out these claims. With `goes_on`, leases move straight on to the next stage.
        After `seconds`, no more effects are run.
        """
        cycle = Settled(tx.now, time.monotonic(), [], {}, [], {}, [], [], [], tx.ended)
        known = layout(tx)
        if known.resources:
            stages = {one.lease.stage for one in finished}
            claimed = (order.stage for order in orders if order.weight)
            lock_resources(tx, stages.union(claimed), named_resources(finished))
        ended = [one for one in finished if one.routine or (one.state in FINISHED and not one.saved)]
        again, back, in_doubt = (
            [one for one in finished if one.state == state] if len(ended) < len(finished) else []
            for state in (State.RETRY_LATER, State.PENDING, State.ON_HOLD)
        )
        if ended:
            onward = self._orders.onward(known) if goes_on else ()
            cycle.moved.extend(complete(tx, ended, onward, until=cycle.began + seconds, left=cycle.left))
        if again:
            fail(tx, again)
        if in_doubt:
            hold_in_doubt(tx, in_doubt)
        for reason in {one.error for one in back}:
            release(tx, [one.lease for one in back if one.error == reason], reason)
        taken = 0
        # Attempts left for later have not freed their places.
        kept = Counter([one.lease.stage for one in cycle.left])
        # Ending an attempt may have stopped its stage.
        known = layout(tx)
        still = self._orders.standing_still(known) if orders else ()
        for order in orders:
            pipeline = known.stages[order.stage].pipeline_name
            held_back = pipeline in still or order.stage in known.paused
            room = min(order.most - kept[order.stage], order.room - taken - (0 if order.weight else len(cycle.left)))
            if held_back or (order.weight is None and known.resources_of(order.stage)):
                cycle.undecided.append(order.stage)
            elif self._is_late(known, order, cycle.began):
                cycle.late.append(order.stage)
            elif room > 0:
                taken += self._claim(tx, worker, order, room, cycle)
        tx.op, tx.rows = "cycle", len(finished) - len(cycle.left) + taken
        if len(ended) < len(finished):
            count_saved(tx, [one for one in finished if one.saved])
        # The state of resources is saved even if they admit nothing.
        tx.is_for_nothing = not finished and not taken and not any(order.weight for order in orders)
        return cycle

    def _is_late(self, known: Layout, order: ClaimOrder, began: float) -> bool:
        """Whether this transaction has taken so long that the calls it claims would start too late."""
        within = known.hand_over_seconds(order.stage) if order.weight is not None else None
        return within is not None and time.monotonic() - began > within / 2

    def at_once(
        self, known: Layout, worker: int, finished: Sequence[FinishedAttempt], orders: Sequence[ClaimOrder]
    ) -> AtOnce[Settled] | None:
        """The same as one statement, if there is only a claim to make: the case of an idle worker that is notified of
        work.
        """
        if finished or len(orders) != 1 or orders[0].weight is not None:
            return None
        [order] = orders
        stage, most = order.stage, min(order.most, order.room)
        if known.parents(stage) or known.resources_of(stage) or known.paused or self._orders.standing_still(known):
            return None
        if order.held or self._orders.is_outdated(stage, known):
            return None
        began = time.monotonic()

        def cycle(leases: list[Lease], now: int) -> Settled:
            return Settled(now, began, [], {stage: leases}, [stage] if len(leases) < most else [], {}, [], [], [])

        return claim_at_once(known, worker, stage, most, self._orders.hand.__contains__, self._store.read, cycle)

    def _claim(self, tx: Transaction, worker: int, order: ClaimOrder, most: int, cycle: Settled) -> int:
        with let_in(tx, order.stage, most) if order.held else nullcontext():
            if order.weight is None:
                leases = claim(tx, worker, order.stage, most)
                dry = len(leases) < most
            else:
                leases, blocked, dry = claim_within_limits(tx, worker, order.stage, most, order.weight, order.weighed)
                for lease in leases:
                    lease.unsure = order.unsure.get(lease.item)
                if blocked is not None:
                    cycle.blocked[order.stage] = blocked
        outdated = self._orders.is_outdated(order.stage, layout(tx))
        cycle.claimed[order.stage] = refuse(tx, order.stage, leases) if outdated else leases
        if dry:
            cycle.dry.append(order.stage)
        return len(leases)
