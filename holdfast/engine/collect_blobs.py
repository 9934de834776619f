"""Which blobs the store refers to: what `prune` collects, and what `db check` misses.

Any mention of a hash, in any value that a handler or a user stored, keeps the content. Nothing is counted as results come and
go; the values are read when it is asked. Content is removed if it is unreferenced in one snapshot, and was last kept a day
before that, and a day before the oldest attempt began that was in progress then: what an attempt keeps stays until it ends.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from functools import partial
from itertools import islice

from holdfast.blobs import Blobs
from holdfast.blobs.blobs import GRACE_SECONDS
from holdfast.blobs.reference import mentioned_in, references_in
from holdfast.engine.memos import LOWEST, all_memos
from holdfast.model.log_lines import logger
from holdfast.store import Store, Transaction

log = logger("holdfast.store")

#: How many blobs are looked for in one reading of the store.
CANDIDATES = 100_000
#: How many rows are read at a time, by their numbers.
STRETCH = 2000
#: How many missing blobs are named.
NAMED = 20


def store_identity(tx: Transaction) -> int:
    """A number that tells the blobs of this store from those of others at the same address."""
    return int(tx.run("store_identity")[0][0])


def collect(store: Store, blobs: Blobs, *, dry_run: bool = False) -> int:
    """Remove content that nothing refers to any more, and what dead writers left; return how much was removed."""
    done, grace_began = 0, time.time() - GRACE_SECONDS
    old = blobs.older_than(grace_began)
    while candidates := list(islice(old, CANDIDATES)):
        unreferenced, before = store.read(partial(_unreferenced, candidates=candidates))
        done += sum(blobs.remove(sha256, before, dry_run=dry_run) for sha256 in unreferenced)
    if not dry_run:
        blobs.remove_leftovers(grace_began)
    return done


def _unreferenced(tx: Transaction, candidates: Iterable[str]) -> tuple[list[str], float]:
    """Those that nothing mentions, and the time since when none of them may have been kept."""
    left = set(candidates)
    [(oldest,)] = tx.run("oldest_lease")
    began = min(tx.now if oldest is None else oldest, tx.now) / 1e6
    for _, _, text in _texts(tx):
        left.difference_update(mentioned_in(text))
    return sorted(left), min(began, time.time()) - GRACE_SECONDS


def missing(store: Store, blobs: Blobs) -> list[str]:
    """References whose content is not there, each as a sentence, up to a limit."""
    if not blobs.most_looks:
        return []
    references = store.read(partial(_references, most=blobs.most_looks))
    if len(references) >= blobs.most_looks:
        log.warning("only the first %s of the blobs that are referred to were looked for", f"{blobs.most_looks:,}")
    lost = (
        f"{place} refers to sha256:{sha256}, which is not at {blobs.where}"
        for sha256, place in references.items()
        if not blobs.is_there(sha256)
    )
    return list(islice(lost, NAMED))


def _references(tx: Transaction, most: int) -> dict[str, str]:
    """Where the store refers to which blob: one place for each."""
    found: dict[str, str] = {}
    for table, number, text in _texts(tx):
        for sha256 in references_in(text):
            found.setdefault(sha256, f"{table} {number}")
        if len(found) >= most:
            break
    return found


def _texts(tx: Transaction) -> Iterator[tuple[str, int, str]]:
    """Every value that mentions a hash, with its table and number."""
    tx.read_all()
    for table in ("items", "outcomes", "calls", "events"):
        after = LOWEST
        # Not by ranges of numbers: one row may have a number far above the rest.
        while (until := tx.run(f"numbers_of_{table}", after=after, most=STRETCH)[0][0]) is not None:
            for number, text in tx.run(f"hashes_in_{table}", after=after, until=until):
                yield table, number, text
            after = until
    for memos in all_memos(tx, "hashes_in_memos", STRETCH):
        yield from (("memos", item, value) for item, value in memos)
