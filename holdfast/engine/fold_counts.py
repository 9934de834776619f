"""Fold counts: add up the counts, sums of money and error groups of writers that are gone into one set of rows, so that reading
them always costs the same; and enter payments of workers of the version before into the ledger."""

from __future__ import annotations

from collections import Counter

from holdfast.clock import SECOND
from holdfast.engine.calls_left_open import doubt_calls_left_open
from holdfast.engine.error_groups import fold_groups
from holdfast.engine.ledger import fold_money, take_up_old_payments
from holdfast.model.plausible import bounded
from holdfast.store import Transaction

CHUNK = 500
#: How long a writer may take to check on a commit whose reply it lost.
COMMITS_KEPT_US = 7 * 24 * 3600 * SECOND


def fold(tx: Transaction, most: int = CHUNK) -> int:
    """Fold some rows; return how many. The transaction's slot must be 0."""
    rows = tx.run("take_counts_of_the_gone", most=most)
    summed: dict[tuple[int, str, int], list[int]] = {}
    for stage, state, bucket, n, total_us, most_us in rows:
        entry = summed.setdefault((stage, state, bucket), [0, 0, 0])
        entry[0] = bounded(entry[0] + n)
        entry[1] = bounded(entry[1] + total_us)
        entry[2] = max(entry[2], most_us)
    tx.run_rows("add_counts", [(0, *key, *entry) for key, entry in sorted(summed.items())])
    tx.run("forget_commits", before=tx.now - COMMITS_KEPT_US)
    return max(
        len(rows),
        _fold_versions(tx, most),
        fold_money(tx, most),
        fold_groups(tx, most),
        take_up_old_payments(tx, most),
        doubt_calls_left_open(tx, most),
    )


def _fold_versions(tx: Transaction, most: int) -> int:
    rows = tx.run("take_versions_of_the_gone", most=most)
    summed: Counter[tuple[int, str, str]] = Counter()
    for stage, version, type_, n in rows:
        summed[stage, version, type_] = bounded(summed[stage, version, type_] + n)
    tx.run_rows("add_versions", [(0, *key, n) for key, n in sorted(summed.items())])
    if rows:
        tx.run("forget_versions")
    return len(rows)
