"""The discoverer: looks at every source that is due, one after the other, in the calling thread.

User code, files and the network are used only between transactions. The failure of a source is recorded and it is tried again
later; the other sources are not affected. A discoverer belongs to one worker, and makes one pass at a time.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial

from holdfast.engine import poll_sources
from holdfast.engine.add import Addition, Merge, typed_data
from holdfast.engine.poll_sources import DueSource, Wanted
from holdfast.engine.register import learn_provenance
from holdfast.engine.upsert import Decide, Looked, NewItem, as_looked, keys_for, look_up
from holdfast.errors import HoldfastError, LeaseLost, StoreError, UsageError, ValueRefused
from holdfast.model import codec
from holdfast.model.durations import spoken
from holdfast.model.error_fingerprint import storable
from holdfast.model.found_items import Checked, Found, Kept, LookCounts, check, label
from holdfast.model.log_lines import logger
from holdfast.model.typed import ValueType
from holdfast.model.urls import as_key
from holdfast.sources.contract import LookedUp, LookEnded, Source, SourceFailed, ending, said
from holdfast.sources.for_each import ForEach, RunsInTransaction
from holdfast.sources.registry import SourceSpec
from holdfast.store import Transaction
from holdfast.telemetry.tracing import looking

log = logger("holdfast.sources")

#: Items per transaction, and their total size.
BATCH = 500
BATCH_BYTES = 8 * 1024 * 1024
#: Look-ups per transaction: few, since an interrupted look repeats those that were not saved.
LOOKED_UP = 20


class Discoverer:
    """Looks at sources for one worker. `sources` are those of its pipelines, by name of the pipeline."""

    def __init__(
        self,
        write: RunsInTransaction,
        read: RunsInTransaction,
        worker: int,
        sources: Mapping[str, Sequence[SourceSpec]],
        *,
        merges: Mapping[str, Merge] | None = None,
        types: Mapping[str, ValueType] | None = None,
        stop: threading.Event | None = None,
        batch: int = BATCH,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._write = write
        self._read = read
        self._worker = worker
        self._sources = {pipeline: {spec.name: spec for spec in specs} for pipeline, specs in sources.items()}
        #: By pipeline, for sources without a merge function of their own.
        self._merges = dict(merges or {})
        #: By pipeline: what the data of its items is checked against.
        self._types = dict(types or {})
        self._stop = stop or threading.Event()
        self._batch = batch
        self._clock = clock

    def register(self) -> None:
        """Register the sources of the pipelines. New and changed ones become due."""

        def is_synced(tx: Transaction) -> bool:
            return all(
                poll_sources.is_synced(tx, pipeline, wanted) for pipeline, wanted in self._wanted(tx.now).items()
            )

        def sync(tx: Transaction) -> None:
            for pipeline, wanted in self._wanted(tx.now).items():
                poll_sources.sync_sources(tx, pipeline, wanted)

        if not self._read(is_synced):
            self._write(sync)

    def one_pass(self) -> int:
        """Look once at each source that is due and not being looked at; return the number of looks."""
        looked: set[int] = set()
        while any(self._sources.values()) and not self._stop.is_set():
            if not self._read(lambda tx: poll_sources.due_now(tx, self._worker, self._wanted(tx.now), but_not=looked)):
                break
            due = self._write(lambda tx: poll_sources.take_due(tx, self._worker, self._wanted(tx.now), but_not=looked))
            if due is None:
                break
            looked.add(due.id)
            try:
                _Look(self, due, self._sources[due.pipeline][due.name]).run()
            except LeaseLost as error:
                log.warning("%s", error)
        return len(looked)

    def _wanted(self, now: int) -> dict[str, dict[str, Wanted]]:
        return {
            pipeline: {name: spec.wanted(now) for name, spec in specs.items()}
            for pipeline, specs in self._sources.items()
        }


class _Look:
    """One look at one source, from start to end."""

    def __init__(self, owner: Discoverer, due: DueSource, spec: SourceSpec) -> None:
        self._owner = owner
        self._due = due
        self._spec = spec
        self._memory = due.memory
        self._deadline = owner._clock() + spec.timeout_seconds
        self._source: Source | None = None
        self._merge: Merge | None = None
        self._type = owner._types.get(due.pipeline)
        self._waiting: list[Checked] = []
        self._weight = 0
        #: Look-ups since the last batch.
        self._looked_up: list[LookedUp] = []
        self._seen = 0
        self._kept: set[str] = set()
        #: The source is exhausted. What it remembers from here on belongs to a complete look, and is saved with its end.
        self._through = False
        #: What is saved: the memory of the source, and the number of bad rows.
        self._saved = due.saved
        self._bad_saved = 0
        #: Kept with the items: the span of this look.
        self._traceparent: str | None = None

    def run(self) -> None:
        with looking(self._due.pipeline, self._due.name) as span:
            if span is not None:
                self._traceparent = span.traceparent
            error = self._look()
            if span is not None:
                span.found(self._due.counts.found)
                if error is not None:
                    span.failed(storable(error))

    def _look(self) -> str | None:
        """Look, and record how it ended; return why it failed."""
        began = self._owner._clock()
        error: str | None = None
        retry_after: float | None = None
        try:
            self._go_through()
        except (LeaseLost, StoreError, KeyboardInterrupt):
            # Not a fault of the source. What was written is kept, and the look continues from there.
            raise
        except LookEnded as ended:
            if self._owner._stop.is_set() or self._spec.each is not None:
                # Many look-ups may take long: other sources get their turn, and the round continues later.
                self._hand_back()
                return None
            error = str(ended)
        except SourceFailed as failed:
            error, retry_after = str(failed), failed.retry_after
        except HoldfastError as refused:
            error = str(refused)
        except BaseException as broken:
            # Also SystemExit and the like: one source must not stop the others.
            log.debug("source %r broke", self._due.name, exc_info=True)
            error = said(broken)
        self._finish(error, retry_after)
        name, counts = f"source {self._due.name!r} of {self._due.pipeline!r}", self._due.counts
        if error is None:
            log.info(
                "%s: %d found, %d new, %d changed, %d vanished, %d bad, in %s",
                name,
                counts.found,
                counts.new,
                counts.changed,
                counts.vanished,
                counts.bad,
                spoken(self._owner._clock() - began),
            )
        else:
            log.warning("%s failed: %s", name, error)
        return error

    def _go_through(self) -> None:
        self._merge = self._spec.merge_function() or self._owner._merges.get(self._due.pipeline)
        learn_provenance(self._due.pipeline, self._merge, self._owner._read, self._owner._write)
        source = self._source = self._open()
        source.check = self._check
        with ending(source.look(self._memory)) as stream:
            for one in stream:
                self._check()
                self._take(one)
        self._through = True
        self._flush()
        if self._due.counts.found == 0 and source.bad and not self._kept and self._spec.each is None:
            raise SourceFailed(f"none of its {source.bad} rows could be read; the first: {source.bad_example}")
        if not source.missed and (source.whole if self._spec.whole is None else self._spec.whole):
            self._set_vanished()

    def _open(self) -> Source:
        if self._spec.each is None:
            return self._spec.open()
        return ForEach(self._spec, self._spec.each, self._due, self._owner._read)

    def _check(self) -> None:
        if self._owner._stop.is_set():
            raise LookEnded("the worker stops")
        if self._owner._clock() > self._deadline:
            limit = spoken(self._spec.timeout_seconds)
            raise LookEnded(f"the look took longer than {limit}; if that is right, set timeout")

    # What comes -------------------------------------------------------------------------------------------------------

    def _take(self, one: Found | Kept | LookedUp) -> None:
        assert self._source is not None
        if isinstance(one, LookedUp):
            self._looked_up.append(one)
            if len(self._looked_up) >= LOOKED_UP:
                self._flush()
            return
        if isinstance(one, Kept):
            self._kept.add(label(one.part))
            return
        self._seen += 1
        if self._seen > self._spec.most:
            raise SourceFailed(f"more than {self._spec.most:,} items; if that is right, set most")
        if self._spec.data:
            # With different data every item has changed, even one with a mark of its own.
            mark = f"{one.mark} {codec.digest(self._spec.data)[:8]}" if one.mark else ""
            one = one._replace(data={**self._spec.data, **one.data}, mark=mark)
        try:
            checked = self._typed(check(one))
        except (UsageError, ValueRefused) as error:
            self._source.skip(f"{str(one.key)[:80]!r}: {error}")
            return
        self._waiting.append(checked)
        self._weight += len(checked.data)
        if len(self._waiting) >= self._owner._batch or self._weight >= BATCH_BYTES:
            self._flush()

    def _typed(self, one: Checked) -> Checked:
        """With the form that the type of the pipeline's data gives it. Its mark is that of the data as it was found: a default
        that the type has changed is no change of the item."""
        type_ = self._type
        if type_ is None:
            return one
        return one._replace(data=typed_data(type_, self._due.pipeline, one.key, codec.decode(one.data)))

    def _flush(self) -> None:
        """Save the items found so far, and the memory of the source."""
        memory = self._new_memory()
        if self._through:
            memory = None
        batch = self._with_contents(self._with_keys(self._waiting))
        while batch or self._looked_up:
            batch, decide = self._decided(batch)
            bad = self._new_bad()
            done = self._owner._write(
                partial(
                    poll_sources.record_found,
                    due=self._due,
                    batch=batch,
                    decide=decide,
                    memory=memory,
                    bad=bad,
                    looked_up=self._looked_up,
                    type_=None if self._type is None else self._type.fingerprint,
                    traceparent=self._traceparent,
                )
            )
            self._due.counts, batch = done.counts, done.left
            self._bad_saved += bad
            if not batch:
                self._looked_up = []
                self._saved = memory or self._saved
        self._waiting, self._weight = [], 0

    def _with_keys(self, batch: list[Checked]) -> list[Checked]:
        """Keys with addresses normalised, whatever their source."""
        if all(as_key(one.key) == one.key for one in batch):
            return batch
        written = [one.key for one in batch]
        keys = self._owner._read(partial(keys_for, pipeline=self._due.pipeline, written=written))
        return [one._replace(key=keys[one.key]) for one in batch]

    def _with_contents(self, batch: list[Checked]) -> list[Checked]:
        """Compute second marks where the first differs; outside any transaction."""
        if not any(one.content for one in batch):
            return batch
        known = self._owner._read(partial(poll_sources.known_marks, due=self._due, keys=[one.key for one in batch]))
        settled = []
        for one in batch:
            self._check()
            try:
                settled.append(one.settled(known.get(one.key)))
            except SourceFailed as error:
                self._skip(str(error))
        return settled

    def _decided(self, batch: list[Checked]) -> tuple[list[Checked], Decide]:
        """Let the merge function decide about known items that have changed; outside any transaction."""
        if self._merge is None:
            return batch, poll_sources.newest
        known = self._owner._read(partial(poll_sources.known_marks, due=self._due, keys=[one.key for one in batch]))
        to = Addition(self._due.pipeline, self._merge, type=self._type)
        items = {one.key: NewItem(one.key, one.data) for one in batch if not one.is_as(known.get(one.key))}
        there = self._owner._read(partial(look_up, pipeline=self._due.pipeline, items=list(items.values())))
        looked: dict[str, Looked] = {}
        refused: set[str] = set()
        for key, old in there.items():
            try:
                looked[key] = Looked(old, to.merged(key, old, items[key].data))
            except UsageError as error:
                self._skip(str(error))
                refused.add(key)
        return [one for one in batch if one.key not in refused], as_looked(looked)

    def _set_vanished(self) -> None:
        """Items that this look did not find have vanished, unless their part was not read because it is unchanged."""
        read, write, due = self._owner._read, self._owner._write, self._due
        still, gone = read(partial(poll_sources.unseen, due=due, kept=self._kept))
        after: str | None = "" if gone else None
        while after is not None:
            self._check()
            due.counts, after = write(partial(poll_sources.set_vanished, due=due, kept=self._kept, after=after))
        due.counts = due.counts + LookCounts(found=still, unchanged=still)

    # The end ----------------------------------------------------------------------------------------------------------

    def _finish(self, error: str | None, retry_after: float | None) -> None:
        memory = self._new_memory() if error is None else self._last_flush()
        self._due.counts.bad += self._new_bad()
        example = self._source.bad_example if self._source else None

        def work(tx: Transaction) -> None:
            poll_sources.finish_look(
                tx,
                self._due,
                memory,
                self._spec.wanted(tx.now).next_at,
                self._due.counts,
                error,
                retry_after=retry_after,
                bad_example=example,
            )

        self._owner._write(work)

    def _hand_back(self) -> None:
        memory = self._last_flush()
        self._owner._write(partial(poll_sources.hand_back, due=self._due, memory=memory, counts=self._due.counts))
        log.info("source %r of %r: the look continues later", self._due.name, self._due.pipeline)

    def _last_flush(self) -> str | None:
        """Save what was found before the look was interrupted. If that fails, it is found again next time."""
        try:
            self._flush()
            return None if self._through else self._new_memory()
        except (LeaseLost, StoreError):
            raise
        except HoldfastError:
            return None

    def _new_memory(self) -> str | None:
        """The memory of the source, if it has changed since it was saved."""
        try:
            memory = poll_sources.remembered(self._due, self._memory)
        except ValueRefused as refused:
            raise SourceFailed(f"what it remembers cannot be stored: {refused}") from None
        return memory if memory != self._saved else None

    def _new_bad(self) -> int:
        return (self._source.bad if self._source else 0) - self._bad_saved

    def _skip(self, what: str) -> None:
        assert self._source is not None
        self._source.skip(what)
