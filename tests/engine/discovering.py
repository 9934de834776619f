"""The sources of a pipeline as a test sees them: one short call per operation, made by one worker."""

from __future__ import annotations

from holdfast.engine import poll_sources
from holdfast.engine.poll_sources import Wanted
from holdfast.model.found_items import Found, check, label

MINUTE = 60_000_000
HOUR = 60 * MINUTE


def every_minute(now, definition="1"):
    return Wanted(definition, now, (now // MINUTE + 1) * MINUTE)


def batch(*items, part="", mark=None):
    """Found items, checked; a key alone or a key with a number."""
    pairs = [item if isinstance(item, tuple) else (item, 0) for item in items]
    return [check(Found(key, {"n": n}, mark or str(n), part)) for key, n in pairs]


class Sources:
    """The operations of one worker on the sources of the app's pipeline."""

    def __init__(self, app, worker="w"):
        self.app = app
        self.me = app.worker(worker).id
        self.definitions = {"s": "1"}

    def _wanted(self, now):
        return {name: every_minute(now, definition) for name, definition in self.definitions.items()}

    def write(self, work):
        return self.app.store.write(work)

    def sync(self, **definitions):
        self.definitions = definitions or self.definitions
        self.write(lambda tx: poll_sources.sync_sources(tx, self.app.name, self._wanted(tx.now)))

    def due(self):
        return self.app.store.read(lambda tx: poll_sources.due_now(tx, self.me, {self.app.name: self._wanted(tx.now)}))

    def take(self):
        return self.write(lambda tx: poll_sources.take_due(tx, self.me, {self.app.name: self._wanted(tx.now)}))

    def record(self, due, found, **more):
        done = self.write(lambda tx: poll_sources.record_found(tx, due, found, **more))
        due.counts = done.counts
        return done

    def vanish(self, due, kept=()):
        parts = {label(part) for part in kept}
        after = ""
        while after is not None:
            due.counts, after = self.write(lambda tx, after=after: poll_sources.set_vanished(tx, due, parts, after))
        return due.counts.vanished

    def finish(self, due, error=None, memory=None, **more):
        def work(tx):
            text = None if memory is None else poll_sources.remembered(due, memory)
            poll_sources.finish_look(tx, due, text, every_minute(tx.now).next_at, due.counts, error, **more)

        self.write(work)

    def look(self, *items, **more):
        """A whole look that finds these."""
        due = self.take()
        self.record(due, batch(*items, **more))
        self.vanish(due)
        self.finish(due)
        return due.counts

    def row(self, name="s"):
        [row] = [one for one in self.app.store.read(poll_sources.sources) if one["source"] == name]
        return row
