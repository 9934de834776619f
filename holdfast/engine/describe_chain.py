"""Describe a chain of items for people: a → b → a."""

from __future__ import annotations

from collections.abc import Sequence

from holdfast.store import Transaction

#: A longer chain is shown by its ends.
SHOWN = 8


def describe_chain(tx: Transaction, items: Sequence[int]) -> str:
    """The keys of items, in order; with their pipelines if there are several."""
    ends = items if len(items) <= SHOWN else [*items[: SHOWN // 2], *items[-SHOWN // 2 :]]
    names = {item: (pipeline, key) for item, pipeline, key in tx.run("names_of", items=sorted(set(ends)))}
    alike = len({pipeline for pipeline, _ in names.values()}) == 1
    # An item may have been deleted since.
    shown = [
        (key if alike else f"{pipeline}/{key}") for pipeline, key in (names.get(item, ("?", "?")) for item in ends)
    ]
    if len(items) > SHOWN:
        shown.insert(SHOWN // 2, f"… ({len(items) - SHOWN:,} more)")
    return " → ".join(shown)
