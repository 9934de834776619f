"""A store in which every table has rows that somebody may spoil, and beside them a pipeline that is to notice nothing."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from holdfast import Holdfast, Permanent, Pipeline, RetryLater, Settings
from holdfast.discovery import discovering
from holdfast.engine import workers
from holdfast.engine.claim import claim
from holdfast.engine.layout import layout
from holdfast.engine.workers import Identity
from holdfast.store import Transaction
from holdfast.store.store import new_identity
from tests.support.steps import ask

QUICK = Settings(lease_seconds=1.0, poll_seconds=0.05, concurrency=4)
#: What nothing waits for longer, unless it never happens.
PATIENCE_SECONDS = 40.0

#: Of one item, `:x`, and its stage `:fetch`: what a short story leaves no row of.
PLANTED = (
    "clock (name, ahead) VALUES ('somewhere', 1)",
    "chains (item, led_by) VALUES (:x, '[1]')",
    "children (parent, child) SELECT :x, MAX(id) FROM holdfast_items WHERE id <> :x",
    "changed (pipeline, item) SELECT pipeline, :x FROM holdfast_stages WHERE id = :fetch",
    "lookups (source, key, mark, at) SELECT id, 'k', 'm', 1 FROM holdfast_sources WHERE name = 'bad-files'",
    """memos (stage, item, name, state, version, idempotency_key, lease, value, at)
    SELECT stage, item, 'ask', 'done', '1', 'k', id, '{}', 1 FROM holdfast_leases WHERE stage = :fetch""",
    """reservations (lease, resource, amount)
    SELECT l.id, r.id, 5 FROM holdfast_leases l, holdfast_resources r WHERE l.stage = :fetch AND r.name = 'api'""",
    """deliveries (alert, body, due_at) VALUES ('bad', '{"by":"log","text":"bad","count":1}', 0)""",
    """error_groups (slot, stage, id, kind, place, message, n, amount, first_seen, last_seen, item)
    VALUES (0, :fetch, 'g', 'E', 'p', 'm', 1, 0, 1, 1, :x)""",
)
ON_SQLITE = (
    "amended (item, stage, lease) VALUES (:x, 0, 1)",
    "grouped (error_group, item, stage) VALUES ('g', :x, :fetch)",
)


class Victim:
    """A store with two pipelines: one whose rows are spoilt, and one that is to notice nothing. Each has a source, an alert
    rule, and a lease of a worker that died."""

    def __init__(self, url: str, folder: Path) -> None:
        self.url = url
        self.folder = folder
        spoilt, good = Pipeline[Any]("spoilt"), Pipeline[Any]("good")

        @spoilt.stage(max_attempts=2, resource="api")
        def fetch(item: Any, ctx: Any) -> Any:
            if item.key == "bad":
                raise Permanent("no such page")
            return ctx.once("ask", dict, cost=0.01)

        @spoilt.stage(after=fetch)
        def link(item: Any, ctx: Any) -> Any:
            if item.key == "later":
                return RetryLater("1h", "not yet")
            return {"fetched": ctx.result("fetch")}

        @good.stage()
        def read(item: Any, ctx: Any) -> Any:
            return {"n": item.data.get("n", 0)}

        @good.stage(after=read)
        def tell(item: Any, ctx: Any) -> Any:
            return ctx.result("read")

        for pipeline, files in ((spoilt, "bad-files"), (good, "good-files")):
            (folder / files).mkdir(exist_ok=True)
            pipeline.source(files, files=f"{folder / files}/*.txt", every="1s")
        self.pipelines = [spoilt, good]
        self.specs = [spoilt.spec, good.spec]

    def open(self) -> Holdfast:
        sources = {one.name: one.sources for one in self.pipelines}
        app = Holdfast(
            self.url,
            self.specs,
            resources={"api": {"rate": "1000/s", "budget": 1000}},
            services=[discovering(sources, {}, self.specs)],
        )
        app.alerts({name: {"event": f"user.{name}", "log": True, "every": "1s"} for name in ("bad", "good")})
        return app

    def fill(self) -> None:
        with self.open() as app:
            app.add("spoilt", ["one", "two", "bad", "later", "held"])
            self.put_file("bad-files", "first")
            self.until(
                app, lambda: len(app.items(stage="link", state="done", most=9)) == 4 and app.items(state="retry_later")
            )
            app.retry(key="bad")
            app.add("spoilt", ["leased"], priority=-1)
            app.add("good", ["leased"])
            self.leave_leases(app)
            app.add("spoilt", ["waits", "waits too"])
            app.add("good", [{"key": f"g{n}", "n": n} for n in range(8)])
            app.event("user.seen", key="one", pipeline="spoilt")

    def leave_leases(self, app: Holdfast) -> None:
        """Two workers that died, one with a lease of each pipeline; and rows that belong to the one that will be spoilt."""

        def leave(tx: Transaction) -> None:
            known = layout(tx)
            for name, pipeline, stage in (("ghost", "spoilt", "fetch"), ("dead", "good", "read")):
                row = known.find(pipeline, stage)
                assert row is not None
                who = Identity(new_identity(), name, "elsewhere", "4711 1", 1_000_000)
                note = {"item": "leased", "stage": stage, "done": 1, "total": 2, "note": ""}
                workers.join(tx, who, {row.id: "1"}, {"in_hand": 1, "done": {"done": 1}, "progress": [note]})
                [lease] = claim(tx, who.id, row.id, 1)
                assert lease.key == "leased"

        def plant(tx: Transaction) -> None:
            [(x, fetch)] = ask(
                tx, "SELECT item, stage FROM holdfast_outcomes WHERE state = 'done' ORDER BY item LIMIT 1"
            )
            ask(tx, "UPDATE holdfast_items SET updated_at = updated_at + 1")
            held = "(stage, item, kind, reason, attempts, alone, rerun, since)"
            [(kept,)] = ask(tx, "SELECT id FROM holdfast_items WHERE key = 'held'")
            ask(tx, "DELETE FROM holdfast_outcomes WHERE item = :kept", kept=kept)
            ask(
                tx,
                f"INSERT INTO holdfast_holds {held} VALUES (:fetch, :kept, 'person', 'r', 0, 0, 0, 1)",
                fetch=fetch,
                kept=kept,
            )
            for text in PLANTED + (ON_SQLITE if tx.store.driver.dialect.name == "sqlite" else ()):
                given = {name: value for name, value in (("x", x), ("fetch", fetch)) if f":{name}" in text}
                ask(tx, f"INSERT INTO holdfast_{text} ON CONFLICT DO NOTHING", **given)

        app.store.write(leave)
        app.store.write(plant)

    def put_file(self, source: str, name: str) -> None:
        (self.folder / source / f"{name}.txt").write_text(name)

    def good_ones(self, app: Holdfast) -> bool:
        """Also what a worker held that died."""
        found = app.items(pipeline="good", stage="tell", state="done", most=100)
        return {one.key for one in found} >= {"leased", *(f"g{n}" for n in range(8))}

    def until(self, app: Holdfast, happened: Callable[[], Any], *, drained: bool = True) -> None:
        """Work until something is so; a worker that ends by itself, if it may, has nothing more to do."""
        worker = app.worker(QUICK)
        give_up_at = time.monotonic() + PATIENCE_SECONDS

        def look() -> None:
            if time.monotonic() > give_up_at or happened():
                worker.stop()

        worker.run(until_drained=drained, on_tick=look, tick_seconds=0.05)
        assert happened()
