"""Discover: a worker polls each source when it is due, one worker at a time, and adds what it finds as items.

One poll (a look) is many small transactions, and nothing of it is lost: each batch is written together with its items, the
memory of the source, and the counts so far. A worker that takes over an unfinished look continues from there in the same run,
so that an item that comes twice counts once. The worker that lost its look can change nothing more (LeaseLost).
"""

from __future__ import annotations

import random
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple

import msgspec

from holdfast.clock import SECOND, microseconds
from holdfast.engine.add import merged, overwrite
from holdfast.engine.upsert import Decide, NewItem, upsert
from holdfast.errors import LeaseLost, UsageError
from holdfast.model import codec, shapes
from holdfast.model.backoff import Backoff
from holdfast.model.did_you_mean import there_are
from holdfast.model.error_fingerprint import storable
from holdfast.model.found_items import Checked, LookCounts, LookedUp
from holdfast.model.plausible import MOST, is_count
from holdfast.model.schedule import NEVER
from holdfast.store import Transaction

#: After a look that failed.
BACKOFF = Backoff(first_seconds=30.0, factor=2.0, most_seconds=3600.0)
#: The longest wait that a server can ask for.
LONGEST_WAIT_US = 24 * 3600 * SECOND
#: The largest memory of a source, as JSON.
MEMORY_BYTES = 4 * 1024 * 1024
#: Rows of `found` per transaction when vanished items are marked.
STRETCH = 5000

#: A memory begins with the definition it belongs to.
_OF = re.compile(r'\{"of":"([^"\\]*)"')

newest: Decide = partial(merged, overwrite)


class Wanted(NamedTuple):
    """A source as it is defined now, at one moment."""

    #: Changes when the memory of the source becomes useless.
    definition: str
    #: When the first look is due, and when the next one after that moment.
    first_at: int
    next_at: int


@dataclass(slots=True)
class DueSource:
    """A look that this worker has claimed, with the memory of the source."""

    id: int
    pipeline: str
    pipeline_number: int
    name: str
    worker: int
    run: int
    definition: str
    memory: dict[str, Any]
    #: The memory as it is stored.
    saved: str
    #: Counts of this run so far, including those of a worker that died.
    counts: LookCounts
    failures: int

    def refused(self) -> LeaseLost:
        return LeaseLost(
            f"source {self.name!r} of pipeline {self.pipeline!r}: another worker has taken over the look, or the "
            f"definition of the source has changed; nothing of this batch was saved"
        )


class Recorded(NamedTuple):
    """The result of recording a batch."""

    counts: LookCounts
    #: Items that another writer has changed since they were merged: they are unchanged here and must be merged again.
    left: list[Checked]


# Which sources there are ----------------------------------------------------------------------------------------------


def sync_sources(tx: Transaction, pipeline: str, wanted: Mapping[str, Wanted]) -> None:
    """Make these the sources of a pipeline: new ones are due at `first_at`, changed ones start over, others are retired."""
    for statement, params in _changes(tx, pipeline, wanted):
        tx.run(statement, **params)


def is_synced(tx: Transaction, pipeline: str, wanted: Mapping[str, Wanted]) -> bool:
    """Whether `sync_sources` would change nothing. Takes no locks."""
    return not _changes(tx, pipeline, wanted)


def _changes(tx: Transaction, pipeline: str, wanted: Mapping[str, Wanted]) -> list[tuple[str, dict[str, Any]]]:
    number = _number(tx, pipeline)
    there = {row["name"]: row for row in tx.records("read_sources") if row["pipeline"] == number}
    changes: list[tuple[str, dict[str, Any]]] = []
    for name, want in wanted.items():
        row = there.get(name)
        anew = {"memory": _wrapped(want.definition, {}), "due_at": want.first_at}
        if row is None:
            changes.append(("add_source", {"pipeline": number, "name": name, **anew}))
        elif not row["active"] or _definition(row["head"]) != want.definition:
            changes.append(("begin_source_anew", {"source": row["id"], **anew}))
        elif _is_late(tx, row, want):
            changes.append(("advance_source", {"source": row["id"], "due_at": _in_time(tx, row, want)}))
    changes += [
        ("retire_source", {"source": row["id"]}) for name, row in there.items() if name not in wanted and row["active"]
    ]
    return changes


def sources(tx: Transaction) -> list[dict[str, Any]]:
    """Every source with its last and next look, what the last one found, and its error."""
    answer = []
    for row in tx.records("read_sources"):
        look = _look(row["found"])
        answer.append(
            {
                "pipeline": row["pipeline_name"],
                "source": row["name"],
                "active": bool(row["active"]),
                "looking": bool(row["held"]),
                "worker": row["worker"] if row["held"] else None,
                "due_at": row["due_at"] if row["due_at"] < NEVER else None,
                "looked_at": row["looked_at"],
                "failures": row["failures"],
                "error": row["error"],
                "counts": None if look is None else look.counts.as_dict(),
            }
        )
    return answer


def call_sources(tx: Transaction, pipeline: str, names: Collection[str] | None = None) -> int:
    """Make sources due now, whatever their schedule says; return how many were not due yet."""
    number = _number(tx, pipeline)
    there = {
        row["name"]: row["id"] for row in tx.records("read_sources") if row["pipeline"] == number and row["active"]
    }
    for name in names or ():
        if name not in there:
            raise UsageError(f"pipeline {pipeline!r} has no source {name!r}; {there_are(name, sorted(there))}")
    called = [id_ for name, id_ in there.items() if names is None or name in names]
    return len(tx.run("call_sources", sources=called, now=tx.now)) if called else 0


# A look ---------------------------------------------------------------------------------------------------------------


def due_now(
    tx: Transaction, worker: int, wanted: Mapping[str, Mapping[str, Wanted]], *, but_not: Collection[int] = ()
) -> bool:
    """Whether `take_due` would take or correct something. Takes no locks."""
    for row in tx.records("read_sources"):
        want = _wanted(row, wanted, but_not)
        if want is not None:
            free = not row["held"] or row["worker"] == worker
            if (free and row["due_at"] <= tx.now) or _is_late(tx, row, want):
                return True
    return False


def take_due(
    tx: Transaction, worker: int, wanted: Mapping[str, Mapping[str, Wanted]], *, but_not: Collection[int] = ()
) -> DueSource | None:
    """Claim the source that has been due the longest, of these (by pipeline and name), and that no live worker looks at.

    A source that a newer deployment defines differently is left to that one.
    """
    if not tx.run("is_worker", worker=worker):
        raise LeaseLost(f"worker {worker} was declared dead, so it cannot take a look at a source")
    rows: dict[int, dict[str, Any]] = {}
    for row in tx.records("read_sources"):
        want = _wanted(row, wanted, but_not)
        if want is not None:
            rows[row["id"]] = row
            if _is_late(tx, row, want):
                tx.run("advance_source", source=row["id"], due_at=_in_time(tx, row, want))
    if not rows:
        return None
    for id_, pipeline, name, memory, run, failures, found in tx.run(
        "take_source", sources=sorted(rows), worker=worker, now=tx.now
    ):
        look = _look(found)
        if look is None or look.ended:
            if not is_count(run):
                [(run,)] = tx.run("last_run", source=id_, most=MOST)
            run, counts = run + 1, LookCounts()
        else:
            counts = replace(look.counts, bad=0)
        due = DueSource(
            id_,
            rows[id_]["pipeline_name"],
            pipeline,
            name,
            worker,
            run,
            _definition(memory),
            _unwrapped(memory),
            memory,
            counts,
            failures,
        )
        tx.run("begin_look", source=id_, worker=worker, run=run, found=_progress(counts, ended=False))
        return due
    return None


def known_marks(tx: Transaction, due: DueSource, keys: Sequence[str]) -> dict[str, str]:
    """The marks with which these keys were found before."""
    return {key: mark for key, mark, _ in tx.run("read_found", source=due.id, keys=list(keys))}


def record_found(
    tx: Transaction,
    due: DueSource,
    batch: Sequence[Checked],
    decide: Decide = newest,
    *,
    memory: str | None = None,
    bad: int = 0,
    looked_up: Sequence[LookedUp] = (),
    type_: str | None = None,
    traceparent: str | None = None,
) -> Recorded:
    """Add new items and change those that have changed; for an unchanged one, only its mark is written. A key counts once per
    run.

    `memory` (see `remembered`), `bad` and `looked_up` are saved with it: an interrupted look continues from there.
    `traceparent` is the span of the look.
    """
    tx.op, tx.rows = "add", len(batch)
    _hold(tx, due)
    given = {one.key: one for one in reversed(batch)}
    known = {key: (mark, run) for key, mark, run in tx.run("read_found", source=due.id, keys=list(given))}
    unseen = [one for one in batch if given[one.key] is one and known.get(one.key, ("", 0))[1] != due.run]
    differ = [one for one in unseen if not one.is_as(known.get(one.key, (None, 0))[0])]
    done = upsert(tx, due.pipeline, [NewItem(one.key, one.data, type_, traceparent) for one in differ], decide)
    again = {item.key for item in done.left}
    seen = [one for one in unseen if one.key not in again]
    tx.run_rows("save_found", [(one.key, one.stored) for one in seen], source=due.id, run=due.run)
    new, changed = len(done.born), done.changed
    counts = due.counts + LookCounts(len(seen), new, changed, len(seen) - new - changed, bad=bad)
    if looked_up and not again:
        tx.run_rows("save_lookups", looked_up, source=due.id, now=tx.now)
    # The memory of a source must never be ahead of its items.
    tx.run("save_look", source=due.id, memory=None if again else memory, found=_progress(counts, ended=False))
    return Recorded(counts, [one for one in differ if one.key in again])


def unseen(tx: Transaction, due: DueSource, kept: Collection[str]) -> tuple[int, int]:
    """How many items this look did not see: in parts that were kept (by label), and elsewhere, where they have vanished."""
    [(still, gone)] = tx.run("count_unseen", source=due.id, run=due.run, kept=sorted(kept))
    return int(still), int(gone)


def set_vanished(
    tx: Transaction, due: DueSource, kept: Collection[str], after: str = ""
) -> tuple[LookCounts, str | None]:
    """Mark the next vanished items, from a key on; return the counts with them, and the key to continue at.

    Their items are kept. If they come back, they count as new or changed only if they are.
    """
    _hold(tx, due)
    [(until,)] = tx.run("found_stretch", source=due.id, after=after, most=STRETCH)
    if until is None:
        return due.counts, None
    gone = tx.run("set_vanished", source=due.id, run=due.run, after=after, until=until, kept=sorted(kept))
    counts = due.counts + LookCounts(vanished=len(gone))
    tx.run("save_look", source=due.id, memory=None, found=_progress(counts, ended=False))
    return counts, until


def finish_look(
    tx: Transaction,
    due: DueSource,
    memory: str | None,
    next_due_at: int,
    counts: LookCounts,
    error: str | None = None,
    *,
    retry_after: float | None = None,
    bad_example: str | None = None,
) -> None:
    """End a look, and set when the next is due. After a failure, the next is due soon, with exponential backoff."""
    _hold(tx, due)
    facts: dict[str, Any] = {"source": due.name, **counts.as_dict()}
    if counts.bad and bad_example:
        facts["first_bad"] = storable(bad_example)
    failures = 0
    if error is None:
        tx.record("discovered", pipeline=due.pipeline_number, **facts)
    else:
        failures = 1 + (due.failures if is_count(due.failures) else 0)
        error = storable(error)
        wait = microseconds(BACKOFF.ceiling(failures) * random.uniform(0.5, 1.0))
        # Jitter only adds to the wait that the server asked for.
        asked = microseconds((retry_after or 0.0) * random.uniform(1.0, 1.1))
        next_due_at = tx.now + min(max(wait, asked), LONGEST_WAIT_US)
        tx.record(
            "discovery_failed",
            pipeline=due.pipeline_number,
            error=error,
            failures=failures,
            next_look_at=next_due_at,
            **facts,
        )
    tx.run(
        "end_look",
        source=due.id,
        memory=memory,
        found=_progress(counts, ended=error is None),
        due_at=next_due_at,
        failures=failures,
        error=error,
        now=tx.now,
    )


def hand_back(tx: Transaction, due: DueSource, memory: str | None, counts: LookCounts) -> None:
    """Leave an unfinished look to the next worker; it is due at once, and continues where it stopped."""
    _hold(tx, due)
    tx.run("hand_source_back", source=due.id, memory=memory, found=_progress(counts, ended=False))


def remembered(due: DueSource, memory: Mapping[str, Any]) -> str:
    """The memory of a source as it is stored; ValueRefused if it cannot be."""
    return _wrapped(due.definition, memory)


# The parts ------------------------------------------------------------------------------------------------------------


def _hold(tx: Transaction, due: DueSource) -> None:
    if not tx.run("hold_source", source=due.id, worker=due.worker, run=due.run):
        raise due.refused()


def _wanted(
    row: Mapping[str, Any], wanted: Mapping[str, Mapping[str, Wanted]], but_not: Collection[int]
) -> Wanted | None:
    """The source of a row as this worker defines it, if it may look at it."""
    want = wanted.get(row["pipeline_name"], {}).get(row["name"])
    if want is None or not row["active"] or row["id"] in but_not or _definition(row["head"]) != want.definition:
        return None
    return want


def _is_late(tx: Transaction, row: Mapping[str, Any], want: Wanted) -> bool:
    """Whether it is due later than possible: its schedule was made shorter, or the clock was set back."""
    return bool(row["due_at"] > (tx.now + LONGEST_WAIT_US if row["failures"] else want.next_at))


def _in_time(tx: Transaction, row: Mapping[str, Any], want: Wanted) -> int:
    return tx.now if row["failures"] else want.next_at


def _number(tx: Transaction, pipeline: str) -> int:
    for number, name, _ in tx.run("read_pipelines"):
        if name == pipeline:
            return int(number)
    raise UsageError(f"there is no pipeline {pipeline!r} in this store")


def _progress(counts: LookCounts, *, ended: bool) -> str:
    return msgspec.json.encode({"ended": ended, "counts": counts.as_dict()}).decode()


def _wrapped(definition: str, memory: Mapping[str, Any]) -> str:
    return codec.encode({"of": definition, "kept": dict(memory)}, limit=MEMORY_BYTES)


def _definition(memory: str) -> str:
    found = _OF.match(memory)
    return found[1] if found else ""


def _unwrapped(memory: str) -> dict[str, Any]:
    kept: dict[str, Any] = codec.stored(memory, {}, shapes.Memory).get("kept", {})
    return kept


def _look(found: str | None) -> shapes.Look | None:
    look: shapes.Look | None = codec.stored(found, None, shapes.Look)
    return look
