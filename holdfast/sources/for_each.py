"""`for_each`: one look at a source for each item of a pipeline, or of another source, with its value in the settings.

Each item is looked up once, and again when its data has changed or after some time. A round goes through the new items and
through a section of the older ones. So it costs the same however many were looked up, and returns to items that were not
ready or failed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from itertools import islice
from typing import Any, ClassVar, Protocol, TypeVar

from holdfast.clock import microseconds
from holdfast.engine import due_lookups
from holdfast.engine.due_lookups import BATCH, WINDOW, Lookup
from holdfast.engine.poll_sources import DueSource
from holdfast.errors import HoldfastError
from holdfast.sources.contract import Found, Kept, LookedUp, LookEnded, Reader, Source, SourceFailed, ending, said
from holdfast.sources.registry import Each, SourceSpec
from holdfast.sources.rows import at, is_missing
from holdfast.sources.value_templates import fill
from holdfast.store import Transaction

T = TypeVar("T")

#: How many ids of older items a round goes through again.
SWEEP = 20_000
#: A round ends after this many failures of the server in a row: they are not about single items.
MOST_TROUBLES = 5


class RunsInTransaction(Protocol):
    """Runs a function of a transaction and returns its result: `Store.write`, `Store.read`, or the like."""

    def __call__(self, work: Callable[[Transaction], T], /) -> T: ...


class ForEach(Source):
    """Looks at a source once for each value that is due."""

    kind = "for_each"
    options: ClassVar[Mapping[str, Reader]] = {}

    def __init__(self, spec: SourceSpec, each: Each, due: DueSource, read: RunsInTransaction) -> None:
        super().__init__(spec.settings, spec.folder)
        self.whole = False
        self._spec = spec
        self._each = each
        self._due = due
        self._read = read
        self._again_us = None if each.again_seconds is None else microseconds(each.again_seconds)
        self._troubles = 0

    def look(self, memory: dict[str, Any]) -> Iterator[Found | Kept | LookedUp]:
        stream = self._of_source(memory, self._each.source) if self._each.source else self._of_pipeline(memory)
        with ending(stream):
            for one in stream:
                yield from self._look_up(one)
                if self._troubles >= MOST_TROUBLES:
                    return

    # For whom -----------------------------------------------------------------------------------------------------------

    def _of_pipeline(self, memory: dict[str, Any]) -> Iterator[Lookup]:
        last, passed = self._read(due_lookups.last_item), int(memory.get("head", 0))
        yield from self._stretch(memory, "head", passed, last)
        begin = min(int(memory.get("sweep", 0)), passed)
        yield from self._stretch(memory, "sweep", begin, min(begin + SWEEP, passed))
        yield from self._stretch(memory, "sweep", 0, min(begin + SWEEP - passed, begin))

    def _stretch(self, memory: dict[str, Any], name: str, after: int, until: int) -> Iterator[Lookup]:
        """The items that are due between two ids. Each is passed before it is looked up, so that one that never ends, or kills
        the worker, does not block the others; the sweep returns to it."""
        assert self._each.pipeline is not None
        while after < until:
            self.check()
            end = min(after + WINDOW, until)
            some = self._read(
                partial(
                    due_lookups.due_of_pipeline,
                    due=self._due,
                    pipeline=self._each.pipeline,
                    stage=self._each.stage,
                    after=after,
                    until=end,
                    again_us=self._again_us,
                )
            )
            for one in some:
                memory[name] = one.item
                yield one
            after = some[-1].item if len(some) == BATCH else end
            memory[name] = after

    def _of_source(self, memory: dict[str, Any], spec: SourceSpec) -> Iterator[Lookup]:
        """The items of another source, from where the last look was interrupted."""
        source = spec.open()
        source.check = self.check
        place = int(memory.get("place", 0))
        with ending(source.look({})) as stream:
            found = (one for one in stream if isinstance(one, Found))
            for _ in islice(found, place):
                self.check()
            while some := list(islice(found, BATCH)):
                self.check()
                due = self._read(partial(due_lookups.due_of_found, due=self._due, found=some, again_us=self._again_us))
                waiting = {one.key: one for one in due}
                for one in some:
                    memory["place"] = place = place + 1
                    if one.key in waiting:
                        yield waiting.pop(one.key)
        self._count(source)
        memory["place"] = 0

    # Looking up ---------------------------------------------------------------------------------------------------------

    def _look_up(self, one: Lookup) -> Iterator[Found | LookedUp]:
        whole = True
        for value in self._values(one):
            try:
                yield from self._found(value)
                self._troubles = 0
            except LookEnded:
                raise
            except Exception as error:
                whole = False
                self._note(one.key, error)
        if whole:
            yield one.done

    def _values(self, one: Lookup) -> list[Any]:
        value = one.key if self._each.value is None else at(one.data, self._each.value)
        if is_missing(value) or value is None:
            return []
        values = value if isinstance(value, list) else [value]
        fit = [one for one in values if isinstance(one, (str, int, float)) and not isinstance(one, bool)]
        if len(fit) < len(values):
            self.skip(f"{one.key[:80]!r}: its value is neither a text nor a number")
        return fit

    def _found(self, value: Any) -> Iterator[Found]:
        source = self._spec.filled(value)
        source.check = self.check
        with ending(source.look({})) as stream:
            for found in stream:
                if isinstance(found, Found):
                    yield found._replace(data={**fill(self._spec.data, value), **found.data})
        self._count(source)

    def _note(self, key: str, error: Exception) -> None:
        """Count a failed look-up. A bad value says nothing about the others; a server that does not answer does."""
        self.skip(f"{key[:80]!r}: {error if isinstance(error, HoldfastError) else said(error)}")
        if isinstance(error, SourceFailed) and (
            error.status is None or error.status in (408, 429) or error.status >= 500
        ):
            self._troubles += 1
            if self._troubles >= MOST_TROUBLES and error.retry_after:
                raise error

    def _count(self, source: Source) -> None:
        self.bad += source.bad
        self.bad_example = self.bad_example or source.bad_example
