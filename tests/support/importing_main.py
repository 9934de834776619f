"""A program that says what it imports, and which statements it reads from files, while a transaction is open. It begins with
nothing loaded, as programs do:

python -m tests.support.importing_main sqlite:////tmp/store.db
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from typing import Any

from holdfast import Backoff, Context, Holdfast, Item, Pipeline
from holdfast.store.postgres import Postgres
from holdfast.store.sqlite import SQLite
from holdfast.worker import Settings

#: `open` in a thread whose transaction has begun and not ended.
transaction = threading.local()

API = {"rate": "1000/s", "concurrency": 4, "budget_per_day": "100", "zone": "Europe/Berlin", "breaker": True}

things = Pipeline("things")


def save(connection: Any, key: str) -> None:
    connection.exec_driver_sql(f"INSERT INTO things_seen VALUES ('{key}')")


@things.stage(resource="api", backoff=Backoff(first_seconds=0.01, most_seconds=0.02))
def see(item: Item, ctx: Context) -> dict[str, int]:
    if item.key == "bad" and ctx.attempt == 1:
        raise ValueError("the first attempt fails")
    ctx.once("paid", lambda: 1, cost="0.5", resource="api")
    ctx.cost("0.25", resource="api")
    ctx.effect(save, item.key)
    if item.key != "more":
        ctx.submit("things", "more")
    return {"seen": 1}


@things.stage(after="see")
async def think(item: Item, ctx: Context) -> dict[str, int]:
    return {"thought": ctx.result("see")["seen"]}


def watched(method: Callable[..., Any], *, is_open: bool) -> Callable[..., Any]:
    def call(*args: Any, **named: Any) -> Any:
        try:
            return method(*args, **named)
        finally:
            transaction.open = is_open

    return call


def tell(event: str, args: tuple[Any, ...]) -> None:
    if getattr(transaction, "open", False):
        if event == "import":
            print("imported", args[0], flush=True)
        elif event == "open" and str(args[0]).endswith(".sql"):
            print("read", args[0], flush=True)


def main() -> None:
    for driver in (SQLite, Postgres):
        for name in ("begin", "begin_read", "begin_bare"):
            setattr(driver, name, watched(getattr(driver, name), is_open=True))
        for name in ("commit", "rollback", "close"):
            setattr(driver, name, watched(getattr(driver, name), is_open=False))
    sys.addaudithook(tell)
    with Holdfast(sys.argv[1], [things.spec], resources={"api": API}) as app:
        # Our transactions look for names in pg_catalog alone.
        table = "things_seen" if app.url.startswith("sqlite") else "public.things_seen"
        app.store.write(lambda tx: tx.connection.execute(f"CREATE TABLE {table} (key TEXT)") and None)
        app.add("things", ["one", "two", "bad"])
        app.run(Settings(poll_seconds=0.05))
        states = {row.key: row.status for row in app.items()}
        print("states", sorted(set(states.values())), len(states), flush=True)


if __name__ == "__main__":
    main()
