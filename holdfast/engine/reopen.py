"""Reopen: send finished stages back to waiting, for whatever reason. Their results stay readable meanwhile."""

from __future__ import annotations

from collections.abc import Mapping

from holdfast.engine.changed_items import enter
from holdfast.engine.layout import layout
from holdfast.model.states import PASSED, Rerun, State
from holdfast.store import Transaction

#: The state in which a stage had ended, the version that ran, and the type of its result.
Was = tuple[State, str | None, str | None]

#: By item and stage.
Reopened = dict[tuple[int, int], Was]


def reopen(tx: Transaction, was: Mapping[tuple[int, int], Was], rerun: Rerun) -> list[tuple[int, int]]:
    """Reopen stages of items that are not open already; return these."""
    done = [(item, stage) for item, stage in tx.run_rows("reopen", list(was), rerun=rerun, since=tx.now)]
    known = layout(tx).stages
    passed: dict[int, list[int]] = {}
    for item, stage in done:
        state, version, type_ = was[item, stage]
        tx.count(stage, state, -1, version=version, type=type_)
        tx.count(stage, State.PENDING, 1)
        if state in PASSED:
            passed.setdefault(known[stage].pipeline, []).append(item)
    for pipeline, items in sorted(passed.items()):
        enter(tx, pipeline, items)
    return done
