"""Results that were checked against another type than their stage has now, or against none, and do not fit it.

Only a process that has declared the type can tell; elsewhere nothing is stale by type.
"""

from __future__ import annotations

from collections.abc import Sequence

from holdfast.engine.checkpoints import ItemPicture
from holdfast.model import codec
from holdfast.model.layout import StageRow
from holdfast.model.states import State
from holdfast.model.typed import known_type
from holdfast.store import Transaction

#: How many results are read at once: each may be large.
CHUNK = 50


def may_not_fit(row: StageRow, type_: str | None) -> bool:
    """Whether results with this fingerprint have to be looked at."""
    return (type_ or None) != row.type and known_type(row.type) is not None


def unfit_results(tx: Transaction, stages: Sequence[StageRow], pictures: Sequence[ItemPicture]) -> set[tuple[int, int]]:
    """The results, by item and stage, that do not fit the types of today. Those of today's types are not read."""
    found: set[tuple[int, int]] = set()
    for row in stages:
        today = known_type(row.type)
        if today is None:
            continue
        items = [
            one.item
            for one in pictures
            if (made := one.made.get(row.id)) and made.state == State.DONE and may_not_fit(row, made.type)
        ]
        for at in range(0, len(items), CHUNK):
            for item, result in tx.run("results_of", stage=row.id, items=items[at : at + CHUNK]):
                if not today.fits(codec.decode_if_possible(result)):
                    found.add((item, row.id))
    return found
