"""Limits, as people see them: every resource with what is allowed, what is used now, and what stands in the way."""

from __future__ import annotations

from typing import Any

from holdfast.engine.blocked_since import BlockedSince
from holdfast.engine.claim_within_limits import NOTHING_SPENT, Spent
from holdfast.engine.layout import layout
from holdfast.engine.resource_state import BY_BUDGET, read_gates
from holdfast.model.budget_day import day_of
from holdfast.model.tuning import merged
from holdfast.store import Transaction


def limits(tx: Transaction) -> list[dict[str, Any]]:
    """One entry per resource, those of pipelines and stages included."""
    known = layout(tx)
    gates = read_gates(tx, list(known.resources))
    if not gates:
        return []
    reserved: dict[int, int] = dict(tx.run("read_reserved", ids=list(gates)))
    days = [(number, day_of(tx.now, gate.spec.zone)) for number, gate in gates.items()]
    spent = {number: Spent(*sums) for number, *sums in tx.run_rows("read_spent", days)}
    users = sorted({user for number in gates for user in known.users_of(number)})
    slots: dict[int, int] = dict(tx.run("count_slots", stages=users)) if users else {}
    since = BlockedSince(tx)
    told = []
    for number, gate in gates.items():
        row = known.resources[number]
        money = spent.get(number, NOTHING_SPENT)
        name, cooling = gate.spec.name, gate.cool_until > tx.now
        paused = bool(gate.paused) and (gate.retry_after is None or gate.retry_after > tx.now)
        told.append(
            {
                "name": name,
                "allowed": merged(row.declared, row.tuned),
                "tuned": sorted(row.tuned),
                "stages": sorted(known.stages[user].label for user in known.users_of(number)),
                "in_use": sum(slots.get(user, 0) for user in known.users_of(number)),
                "pace": gate.pace_now(tx.now),
                "cooled_at": since.at("cool_down", name) if cooling else None,
                "cool_until": gate.cool_until if cooling else None,
                "paused": paused,
                "reason": gate.reason if paused else None,
                "paused_at": since.at("budget" if gate.paused == BY_BUDGET else "paused", name) if paused else None,
                "paused_until": gate.retry_after if paused else None,
                "breaker": _breaker(gate.breaker.open_until, tx.now),
                "breaker_opened_at": since.at("breaker", name) if gate.breaker.is_open else None,
                "breaker_until": gate.breaker.open_until if tx.now < (gate.breaker.open_until or 0) else None,
                "failures": gate.breaker.failures,
                "spent": money.in_all,
                "costs": money.costs,
                "in_doubt": money.in_doubt,
                "spent_today": money.today,
                "set_aside": reserved.get(number, 0),
            }
        )
    return told


def _breaker(open_until: int | None, now: int) -> str:
    if open_until is None:
        return "closed"
    return "open" if now < open_until else "probing"
