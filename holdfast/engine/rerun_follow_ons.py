"""Rerun items: start finished items again because a follow-on with `when_exists="rerun"` asks for them.

An item counts as running as long as the reruns it has caused are: neither its own attempt nor theirs can start it again. So
items that rerun themselves, or each other, come to an end. Many of them may still take very long: see `runaway_reruns.py`.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

import msgspec

from holdfast.engine.describe_chain import describe_chain
from holdfast.engine.layout import layout
from holdfast.engine.reopen import reopen
from holdfast.engine.runaway_reruns import pause_runaway
from holdfast.model import codec, shapes
from holdfast.model.layout import StageRow
from holdfast.model.states import Rerun, State
from holdfast.store import Transaction

#: The longest chain of reruns: all of them are read to find out whether an item has caused itself.
LONGEST = 1000


def rerun_items(tx: Transaction, pipeline: str, asked: Mapping[int, Sequence[int]], renewed: Collection[int]) -> None:
    """Start items again at their first stages; those with open work are left to run. `asked` has, by item, the items whose
    attempts ask for it; `renewed` are those with new data."""
    led_by = _allowed(tx, pipeline, asked)
    busy = {row[0] for row in tx.run("open_items", items=list(led_by))}
    idle = [item for item in led_by if item not in busy]
    in_vain = [item for item in idle if len(led_by[item]) > 1 and item not in renewed]
    for stage in layout(tx).of_pipeline(pipeline):
        if not stage.after:
            _reopen(tx, stage, idle)
            if in_vain:
                pause_runaway(tx, stage, len(in_vain), [*led_by[in_vain[-1]], in_vain[-1]])
    tx.run_rows("save_reruns", [(item, msgspec.json.encode(led_by[item]).decode()) for item in idle])
    tx.tell_idle_workers()


def _allowed(tx: Transaction, pipeline: str, asked: Mapping[int, Sequence[int]]) -> dict[int, list[int]]:
    """The items that are not asked for by their own reruns, each with the chain of items that caused it."""
    askers = sorted({asker for several in asked.values() for asker in several})
    before = {item: codec.stored(led_by, [], shapes.NUMBERS) for item, led_by in tx.run("read_reruns", items=askers)}
    allowed: dict[int, list[int]] = {}
    for item, several in asked.items():
        ways = [[*before.get(asker, ()), asker] for asker in several]
        if good := [way for way in ways if item not in way and len(way) < LONGEST]:
            allowed[item] = min(good, key=len)
            continue
        [way, *_] = ways
        through = way[way.index(item) :] if item in way else way
        why = f"{describe_chain(tx, [*through, item])}: " + (
            "it would run because of itself" if item in way else f"more than {LONGEST:,} reruns follow from each other"
        )
        tx.record("rerun_refused", pipeline=layout(tx).number_of(pipeline), item=item, reason=why)
    return allowed


def _reopen(tx: Transaction, stage: StageRow, items: list[int]) -> None:
    was = {
        (item, stage.id): (State(state), version, type_)
        for item, state, _, version, type_ in tx.run("read_outcome_states", stage=stage.id, items=items)
    }
    for item, number in reopen(tx, was, Rerun.ASKED):
        tx.record("submitted_again", pipeline=stage.pipeline, item=item, stage=number, was=str(was[item, number][0]))
