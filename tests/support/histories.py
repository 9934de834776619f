"""Histories of items, as the fold of `holdfast.model.history` reads them."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from holdfast.answers import HistoryEntry
from holdfast.model.history import fold
from holdfast.model.states import State


def folded(
    history: Iterable[HistoryEntry], after: Mapping[str, Collection[str]], awaiting: Collection[str] = ()
) -> dict[str, State]:
    """Where each stage of an item is, from its history alone."""
    return fold([{**one.data, "event": one.event, "stage": one.stage} for one in history], after, awaiting)
