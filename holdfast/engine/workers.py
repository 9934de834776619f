"""Workers make themselves known, beat, and leave."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from holdfast.store import Transaction


@dataclass(frozen=True, slots=True)
class Identity:
    """Who a worker is: a number of its own per start. The name is only a label."""

    id: int
    name: str
    #: Machine and process, so that a neighbour can see when the process is gone.
    host: str
    process: str
    lease_us: int


def join(tx: Transaction, who: Identity, versions: Mapping[int, str], facts: dict[str, Any]) -> None:
    """Appear among the living, with the stages this worker offers and the version of its code for each."""
    tx.run(
        "add_worker",
        id=who.id,
        name=who.name,
        host=who.host,
        process=who.process,
        clock=tx.store.driver.clock_name,
        now=tx.now,
        alive_until=tx.steady + who.lease_us,
        lease_us=who.lease_us,
        stages=msgspec.json.encode(list(versions)).decode(),
        versions=msgspec.json.encode(versions).decode(),
        facts=msgspec.json.encode(facts).decode(),
    )
    tx.record("worker_started", worker=who.id, name=who.name, stages=len(versions))


def beat(tx: Transaction, who: Identity, facts: dict[str, Any]) -> bool:
    """Renew every lease of this worker at once; False if it was declared dead meanwhile."""
    tx.op, tx.rows = "beat", 1
    alive_until = tx.steady + who.lease_us
    return bool(
        tx.run("beat", id=who.id, now=tx.now, alive_until=alive_until, facts=msgspec.json.encode(facts).decode())
    )


def leave(tx: Transaction, who: Identity, facts: dict[str, Any]) -> None:
    """Go. Leases left behind are free from now on."""
    tx.run("remove_worker", id=who.id)
    tx.record("worker_stopped", worker=who.id, name=who.name, **facts)
