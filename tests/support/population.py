"""A store in which everything occurs that a store can hold; and a worker for its pipelines. For tests of upgrades.

    python -P -m tests.support.population fill --store URL --ledger FILE --code FOLDER
    python -P -m tests.support.population work --store URL --ledger FILE --code FOLDER
    python -P -m tests.support.population look --store URL --ledger FILE --code FOLDER

The same program runs on an earlier holdfast and on today's: FOLDER says on which, and the package must come from there. So
it uses nothing of this repository but the ledger, and only names that both versions have. `fill` runs on the earlier one.

Pipeline `books`: `extract` pays a model, `index` runs beside it, `publish` follows both and waits for the children that
`extract` submits to the pipeline `pages`. While the store is filled, `act` in an item's data says what becomes of it. A
worker of `work` follows no acts: whatever it gets, it does. There, `until` names a file that `extract` waits for.

Pipeline `covers`, which `fill` leaves empty: `draw` pays an artist, whose limits bind. An item's data may name files that are
waited for: `during`, inside the paid call, and `until`, after it. `seconds` says how long it takes. What comes after that may
be `late`: `ask` is another paid call and a report of costs, `fail` is that the first attempt gives up.

With `--notes`, each stage writes a row into that table of the user's own, with `ctx.effect`. If an item's data says `torn`, the
first attempt at each stage has its effect raise right after it has written.
"""

from __future__ import annotations

import argparse
import ctypes
import gc
import json
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import holdfast
from holdfast import Backoff, Context, Holdfast, Item, Permanent, Pipeline, RetryLater, Skip
from holdfast.model.history import fold
from holdfast.model.states import OPEN
from holdfast.worker import Settings
from tests.support.ledger import Ledger

#: What an answer of the model costs, as it is written and in millionths; and what an attempt reports beside it.
PRICE, PRICE_MICROS, REPORTED_MICROS = "0.05", 50_000, 30_000
#: What an artist draws for; how many drawings the budget pays for; and how many artists there are, and how fast they are.
DRAWING, DRAWINGS = "0.05", 120
ARTISTS, DRAWN_PER_SECOND, DRAWN_AT_ONCE = 3, 40, 6
RESOURCES = {
    "model": {"budget": "1000.00", "concurrency": 60, "rate": "1000/s", "burst": 50},
    "artist": {
        "budget": str(DRAWINGS * Decimal(DRAWING)),
        "concurrency": ARTISTS,
        "rate": f"{DRAWN_PER_SECOND}/s",
        "burst": DRAWN_AT_ONCE,
    },
}
SETTINGS = Settings(concurrency=4, lease_seconds=2.0, poll_seconds=0.2)
QUICK = Backoff(first_seconds=0.02, most_seconds=0.05)
#: What handlers take in a worker of `work`: long enough that two workers share what there is.
WORK_SECONDS = 0.01

#: What a worker has been through, by `act`.
ENDED = ("plain", "parent", "skip", "fail", "exhaust", "later")
#: In the hands of a worker that was killed: inside a handler, and between the intent and the record of a paid call.
HELD = ("hang", "die")
UNTOUCHED = ("pending", "cancel")


def pipelines(
    ledger: Ledger, *, acts: bool = False, proofread: bool = False, version: str = "1", notes: str = ""
) -> list[Pipeline]:
    """`books`, `pages` and `covers`. With `proofread`, `books` has one more stage: it is removed while the store is filled.
    The version is that of `index`, and `notes` the table that effects write to, if any."""
    books = Pipeline("books", resources=RESOURCES)
    pages = Pipeline("pages")
    covers = Pipeline("covers", resources=RESOURCES)

    def ask(key: str, act: str) -> dict[str, str]:
        ledger.append("paid", key, "extract")
        if act == "die":
            _wait_for(lambda: ledger.starts("hang"))
            os.kill(os.getpid(), signal.SIGKILL)
        return {"answer": f"about {key}"}

    def begin(item: Item, ctx: Context, stage: str) -> str:
        ledger.append("start", item.key, stage, ctx.attempt)
        if acts:
            return str(item.data.get("act", ""))
        time.sleep(WORK_SECONDS)
        return ""

    def end(item: Item, ctx: Context, stage: str) -> None:
        if notes:
            torn = bool(item.data.get("torn")) and ctx.attempt == 1
            ctx.effect(take_note, notes, item.key, f"{stage} {ctx.attempt} {os.getpid()}", torn)
        ledger.append("end", item.key, stage, ctx.attempt)

    @books.stage(resource="model", estimate=PRICE, max_attempts=2, backoff=QUICK)
    def extract(item: Item, ctx: Context) -> Any:
        act = begin(item, ctx, "extract")
        if act == "fail":
            raise Permanent("no such book")
        if act == "exhaust":
            raise ValueError("torn page")
        if act == "hang":
            threading.Event().wait()
        if act == "skip":
            end(item, ctx, "extract")
            return Skip("an empty book")
        answer = ctx.once("answer", ask, item.key, act, cost=PRICE, resource="model")
        # Facts were keywords of their own in the earlier version, the only one that fills a store.
        ctx.cost("0.01", **({"pages": 12} if acts else {}))
        ctx.cost("0.02", resource="model", **({"tokens": 500} if acts else {}))
        if act == "later":
            # The answer is recorded, the stage is not finished.
            return RetryLater(after=86_400)
        if not acts and item.data.get("until"):
            _wait_for(lambda: Path(item.data["until"]).exists())
        for child, what in item.data.get("children", {}).items():
            ctx.submit("pages", f"{item.key}/{child}", {"act": what}, child=True)
        end(item, ctx, "extract")
        return answer

    @books.stage(version=version)
    def index(item: Item, ctx: Context) -> Any:
        begin(item, ctx, "index")
        end(item, ctx, "index")
        return {"words": len(item.key)}

    @books.stage(after=("extract", "index"), after_children="pages")
    def publish(item: Item, ctx: Context) -> Any:
        begin(item, ctx, "publish")
        end(item, ctx, "publish")
        return {"text": ctx.result("extract"), **ctx.result("index"), "children": ctx.children("pages")}

    if proofread:

        @books.stage(name="proofread")
        def proofread_(item: Item, ctx: Context) -> Any:
            return {"errors": 0}

    @pages.stage()
    def read(item: Item, ctx: Context) -> Any:
        act = begin(item, ctx, "read")
        if act == "later":
            return RetryLater(after=86_400)
        end(item, ctx, "read")
        return {"read": item.key}

    def draw_one(key: str, name: str, during: str) -> str:
        ledger.append("paid", key, name)
        if during:
            _wait_for(Path(during).exists)
        return f"{name} of {key} by {os.getpid()}"

    @covers.stage(resource="artist", estimate=DRAWING, max_attempts=5, backoff=QUICK)
    def draw(item: Item, ctx: Context) -> Any:
        begin(item, ctx, "draw")
        drawing = ctx.once("drawing", draw_one, item.key, "drawing", item.data.get("during", ""), cost=DRAWING)
        time.sleep(item.data.get("seconds", 0))
        if item.data.get("until"):
            ledger.append("waits", item.key, "draw", ctx.attempt)
            _wait_for(Path(item.data["until"]).exists)
        late = item.data.get("late")
        if late == "fail" and ctx.attempt == 1:
            raise Permanent("the artist is gone")
        frame = ctx.once("frame", draw_one, item.key, "frame", "", cost=DRAWING) if late == "ask" else None
        if late:
            ctx.cost("0.01")
            ctx.submit("pages", f"{item.key}/by-{os.getpid()}")
        end(item, ctx, "draw")
        return {"drawing": drawing, "frame": frame, "by": os.getpid()}

    return [books, pages, covers]


def take_note(connection: Any, table: str, key: str, text: str, torn: bool) -> None:
    """An effect. Another process may have to find it, and so it is no closure."""
    # What only effects need: most workers here never have any.
    from sqlalchemy import text as sql

    connection.execute(sql(f"INSERT INTO {table} (key, text) VALUES (:key, :text)"), {"key": key, "text": text})
    if torn:
        raise ValueError("torn page")


def open_app(url: str, ledger: Ledger, **how: Any) -> Holdfast:
    return Holdfast(url, [one.spec for one in pipelines(ledger, **how)], resources=RESOURCES)


# Filling --------------------------------------------------------------------------------------------------------------


def fill(url: str, ledger: Ledger) -> None:
    """Make the store, and print what is in it. Every step leaves something that an upgrade must keep."""
    with open_app(url, ledger, acts=True, proofread=True) as app:
        books = [{"key": act, "act": act} for act in ENDED]
        books[1]["children"] = {"first": "plain", "second": "plain", "slow": "later"}
        app.add("books", books)
        _look_into_a_source(app)
        alerts = _alerts(app)
        alerts.one_pass()
        _work(app)
        # The rule finds what failed meanwhile; a delivery is taken, and nobody says how it went.
        alerts.one_pass()
        alerts.stop()
        app.add("books", [{"key": "unread", "act": "plain"}])  # its `proofread` never runs
    with open_app(url, ledger, acts=True) as app:
        app.register()
        app.cancel(key="unread", by="a person", reason="not now")
        app.add("books", [{"key": act, "act": act} for act in HELD])
    _die_working(url, ledger)
    with open_app(url, ledger) as app:
        app.add("books", UNTOUCHED)
        app.add("pages", ["loose"], priority=-1)
        app.cancel(key="cancel", by="a person", reason="a duplicate")
        app.tune("books", {"model.concurrency": 50, "index.concurrency": 40}, by="a person", reason="slow provider")
        app.pause("pages", by="a person", reason="the library is closed")
    look(url, ledger)


# What only `fill` needs is imported where it is used: it runs on the earlier version, today's may have it elsewhere.


def _look_into_a_source(app: Holdfast) -> None:
    try:
        from holdfast.discovery import discover_now
    except ImportError:  # where the earlier version has it
        from holdfast.companions import discover_now  # type: ignore[no-redef, import-not-found]

    shelf = Pipeline("pages")
    shelf.source("shelf", list=["shelf-1", {"key": "shelf-2", "year": 1887}], every="1h")
    discover_now(app, {"pages": shelf.sources}, {})


def _alerts(app: Holdfast) -> Any:
    from holdfast.model.alert import AlertRule

    try:
        from holdfast.worker.background.alerts import Alerts
    except ImportError:  # where the earlier version has it
        from holdfast.worker.alerting import Alerting as Alerts  # type: ignore[no-redef]

    return Alerts(app.store.another(), [AlertRule.read("trouble", {"event": "failed", "command": ["true"]})], lambda: 1)


def _work(app: Holdfast) -> None:
    """Until nothing is left but what waits for tomorrow."""
    worker = app.worker(SETTINGS)

    def tick() -> None:
        states = [stage["states"] for pipeline in _pipelines(app) for stage in pipeline["stages"]]
        if not any({"pending", "in_progress"} & one.keys() for one in states) and any(
            "exhausted" in one for one in states
        ):
            worker.stop()

    worker.run(on_tick=tick, tick_seconds=0.02)


def _die_working(url: str, ledger: Ledger) -> None:
    """A worker that is killed with two items in its hands; another process, since it does not survive."""
    # The earlier version refuses a file that its parent has open, also in connections that only wait for the collector.
    gc.collect()
    pid = os.fork()
    if pid == 0:
        try:
            _die_with_parent()
            with open_app(url, ledger, acts=True) as app:
                app.worker(SETTINGS).run()
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(1)
    _, status = os.waitpid(pid, 0)
    if not os.WIFSIGNALED(status) or os.WTERMSIG(status) != signal.SIGKILL:
        raise RuntimeError(f"the worker was to be killed and ended with status {status}")


# Working and looking --------------------------------------------------------------------------------------------------


def work(url: str, ledger: Ledger, books: list[Any], covers: list[Any], notes: str) -> None:
    """Add these items, and work until stopped."""
    with open_app(url, ledger, notes=notes) as app:
        app.add("books", books)
        app.add("covers", covers)
        app.worker(SETTINGS).run()


def live_far_away() -> None:
    """Look like a process of another machine: only silence can tell that it is dead."""
    try:
        from holdfast.runtime import process_identity as machine
    except ImportError:  # where the earlier version has it
        from holdfast.worker import machine  # type: ignore[no-redef, attr-defined]

    machine.this_host = lambda: f"the machine of {os.getpid()}"


def look(url: str, ledger: Ledger) -> None:
    with open_app(url, ledger) as app:
        json.dump(seen(app), sys.stdout)


def seen(app: Holdfast) -> dict[str, Any]:
    """What the store holds, in words that both versions have."""
    pipelines = _pipelines(app)
    after = {(one["name"], stage["name"]): stage["after"] for one in pipelines for stage in one["stages"]}
    return {
        "counts": {
            f"{one['name']}/{stage['name']}": stage["states"]
            for one in pipelines
            for stage in [*one["stages"], *one["removed"]]
        },
        "paused": [one["name"] for one in pipelines if one["paused"]],
        "items": {item["key"]: item for item in _items(app, after)},
        "wrong": app.check(),
    }


def _items(app: Holdfast, after: dict[tuple[str, str], list[str]]) -> Iterator[dict[str, Any]]:
    for pipeline in sorted({pipeline for pipeline, _ in after}):
        stages = {stage: before for (owner, stage), before in after.items() if owner == pipeline}
        for row in _facts(app.items(pipeline=pipeline, most=100_000)):
            shown = _facts(app.show(row["key"], pipeline))
            history = [{**told.get("data", {}), **told} for told in shown["history"]]
            yield {
                "key": row["key"],
                "status": shown["status"],
                "data": shown["data"],
                "stages": [[one["stage"], one["state"], one["attempts"], one.get("result")] for one in shown["stages"]],
                # Payments of one instant come in any order.
                "history": [[told["event"], told.get("stage")] for told in shown["history"] if told["event"] != "cost"],
                "payments": sum(told["event"] == "cost" for told in shown["history"]),
                "folded": fold(history, stages, [stage for stage in stages if stage == "publish"]),
                "memos": sorted(
                    [memo["stage"], memo["name"], memo["state"]] for memo in _facts(app.memos(row["key"], pipeline))
                ),
            }


def _pipelines(app: Holdfast) -> list[dict[str, Any]]:
    found = _facts(app.status())
    return found if isinstance(found, list) else found["pipelines"]


def _facts(answer: Any) -> Any:
    """An answer as lists and dictionaries, which is all that the old version has."""
    return answer if isinstance(answer, (list, dict)) else answer.json()


def is_open(app: Holdfast) -> bool:
    """Is anything left to do?"""
    return any(OPEN & stage["states"].keys() for one in _pipelines(app) for stage in one["stages"])


def _wait_for(fact: Any) -> None:
    while not fact():
        time.sleep(0.005)


def _die_with_parent() -> None:
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("what", choices=["fill", "work", "look"])
    for name in ("store", "ledger", "code"):
        parser.add_argument(f"--{name}", required=True)
    for name in ("books", "covers"):
        parser.add_argument(f"--{name}", type=json.loads, default=[], help="what `work` adds before it begins, as JSON")
    parser.add_argument("--notes", default="", help="the table that effects of `work` write to")
    parser.add_argument("--far", action="store_true", help="look like a worker of another machine")
    given = parser.parse_args()
    found = Path(holdfast.__file__).resolve()
    if Path(given.code).resolve() not in found.parents:
        raise RuntimeError(f"holdfast was to come from {given.code}, and came from {found}")
    _die_with_parent()
    ledger = Ledger(Path(given.ledger))
    if given.far:
        live_far_away()
    if given.what == "work":
        work(given.store, ledger, given.books, given.covers, given.notes)
    else:
        {"fill": fill, "look": look}[given.what](given.store, ledger)


if __name__ == "__main__":
    main()
