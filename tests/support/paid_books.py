"""Pipelines with paid calls, rows of the user's own, follow-ons and children; what torture and crash tests run.

    books:        extract (two paid calls) → chunk (rows; children; a follow-on) → ready (waits for its pieces)
    pieces:       embed (one paid call, a row that refers to a chunk)
    connections:  link (one paid call, a row that refers to two chunks)
    gathered:     steps (eight paid calls at once, on the event loop)
    held, asked:  call (one paid call, whose doubt is held, or asked about)

What happens in them is told to a ledger: when a handler starts, and when a process is about to be killed.
"""

from __future__ import annotations

import asyncio
import functools
import json
import os
import random
import signal
import time
from pathlib import Path
from typing import Any

import sqlalchemy as sa
from sqlalchemy import Connection

from holdfast import Backoff, BatchContext, CallAgain, Context, Holdfast, Item, Pipeline
from tests.support.own_tables import engine_of
from tests.support.paid_server import answer_to, call_provider, look_up

#: The schema of the user's tables, on PostgreSQL.
SCHEMA = "HOLDFAST_TEST_SCHEMA"
LEDGER = "HOLDFAST_TEST_LEDGER"
PARTS = 3
PRICE = 0.4

SETTINGS: dict[str, Any] = {"max_attempts": 1000, "backoff": Backoff(first_seconds=0.01, most_seconds=0.05)}


# The ledger -----------------------------------------------------------------------------------------------------------


def tell(what: str, **facts: Any) -> None:
    _append(os.environ.get(LEDGER, os.devnull), what, facts)


def tell_of(ledger: Path, **death: Any) -> None:
    """Somebody is about to be killed."""
    _append(ledger, "killed", death)


def _append(ledger: str | Path, what: str, facts: dict[str, Any]) -> None:
    """One line, in one write: no kill can tear it."""
    line = {"what": what, "at": time.monotonic(), "pid": os.getpid(), **facts}
    descriptor = os.open(ledger, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666)
    try:
        os.write(descriptor, json.dumps(line).encode() + b"\n")
    finally:
        os.close(descriptor)


def die(how: str) -> None:
    """End this process here and now, and leave word of it."""
    tell("killed", killed=os.getpid(), how=how)
    os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(60)


# The user's tables ----------------------------------------------------------------------------------------------------


class Tables:
    """documents, chunks and connections, bound to each other by foreign keys."""

    def __init__(self, schema: str | None) -> None:
        self.metadata = sa.MetaData(schema=schema)
        prefix = f"{schema}." if schema else ""
        key = functools.partial(sa.Column, type_=sa.Text, primary_key=True)
        number = functools.partial(sa.Column, type_=sa.Integer, primary_key=True)
        self.document = sa.Table(
            "documents", self.metadata, key("key"), sa.Column("title", sa.Text), sa.Column("ready", sa.Integer)
        )

        def chunk(n: str = "n") -> sa.ForeignKeyConstraint:
            return sa.ForeignKeyConstraint(["document", n], [f"{prefix}chunks.document", f"{prefix}chunks.n"])

        self.chunk = sa.Table(
            "chunks",
            self.metadata,
            key("document"),
            number("n"),
            sa.Column("text", sa.Text),
            sa.ForeignKeyConstraint(["document"], [f"{prefix}documents.key"]),
        )
        self.vector = sa.Table(
            "vectors", self.metadata, key("document"), number("n"), sa.Column("value", sa.Text), chunk()
        )
        self.connection = sa.Table(
            "connections", self.metadata, key("document"), number("n"), number("other"), chunk(), chunk("other")
        )
        #: How often an effect has taken place, for those that replace their rows.
        self.tally = sa.Table("tallies", self.metadata, key("name"), sa.Column("n", sa.Integer))

    def create(self, url: str) -> None:
        """Make them in the store's database, which holdfast has made its own tables in."""
        engine, _ = engine_of(url)
        self.metadata.create_all(engine)
        engine.dispose()

    def read(self, url: str) -> dict[str, list[tuple[Any, ...]]]:
        """Every row, in order."""
        engine, _ = engine_of(url)
        with engine.connect() as connection:
            found = {
                table.name: [tuple(row) for row in connection.execute(sa.select(table).order_by(*table.columns))]
                for table in self.metadata.sorted_tables
            }
        engine.dispose()
        return found


def tables() -> Tables:
    return _tables(os.environ.get(SCHEMA) or None)


_tables = functools.cache(Tables)


_fate = random.Random()


def perhaps_die(where: str) -> None:
    """In some workers, now and then."""
    if _fate.random() < float(os.environ.get("HOLDFAST_TEST_DIE_IN_EFFECT", 0)):
        die(where)


def save_document(connection: Connection, key: str, title: str) -> None:
    own = tables()
    connection.execute(own.document.insert().values(key=key, title=title, ready=0))
    perhaps_die("effect")


def save_chunks(connection: Connection, key: str, texts: list[str]) -> None:
    own = tables()
    for n, text in enumerate(texts):
        connection.execute(own.chunk.insert().values(document=key, n=n, text=text))
        perhaps_die("effect")
    count(connection, f"chunks of {key}")


def count(connection: Connection, name: str) -> None:
    tally = tables().tally
    if not connection.execute(tally.update().where(tally.c.name == name).values(n=tally.c.n + 1)).rowcount:
        connection.execute(tally.insert().values(name=name, n=1))


def save_vector(connection: Connection, key: str, n: int, value: str) -> None:
    connection.execute(tables().vector.insert().values(document=key, n=n, value=value))
    perhaps_die("effect")


def save_connections(connection: Connection, key: str) -> None:
    for n in range(1, PARTS):
        connection.execute(tables().connection.insert().values(document=key, n=n - 1, other=n))


def set_ready(connection: Connection, key: str, pieces: int) -> None:
    document = tables().document
    connection.execute(document.update().where(document.c.key == key).values(ready=document.c.ready + pieces))


# Pipelines ------------------------------------------------------------------------------------------------------------

books = Pipeline("books")
pieces = Pipeline("pieces")
connections = Pipeline("connections")


def paid(ctx: Context, name: str, **how: Any) -> dict[str, Any]:
    """A paid call; the answer must be the one to this question, whatever was killed before."""
    key = ctx.item.key
    value: dict[str, Any] = ctx.once(name, call_provider, key, name, ctx.idempotency_key(name), cost=PRICE, **how)
    assert value == answer_to(key, name), f"{name} of {key} got {value}"
    return value


@books.stage(**SETTINGS)
def extract(item: Item, ctx: Context) -> dict[str, Any]:
    tell("start", key=item.key, stage="extract", attempt=ctx.attempt)
    title, text = paid(ctx, "title"), paid(ctx, "text")
    ctx.effect(save_document, item.key, title["text"])
    return {"text": text["text"]}


@books.stage(after="extract", **SETTINGS)
def chunk(item: Item, ctx: Context) -> dict[str, Any]:
    tell("start", key=item.key, stage="chunk", attempt=ctx.attempt)
    texts = [f"{ctx.result('extract')['text']}, part {n}" for n in range(PARTS)]
    ctx.effect(save_chunks, item.key, texts)
    for n in range(PARTS):
        ctx.submit("pieces", f"{item.key}/{n}", {"document": item.key, "n": n}, child=True)
    ctx.submit("connections", item.key)
    return {"chunks": PARTS}


@books.stage(after="chunk", after_children="pieces", **SETTINGS)
def ready(item: Item, ctx: Context) -> dict[str, int]:
    tell("start", key=item.key, stage="ready", attempt=ctx.attempt)
    ended = ctx.children("pieces")
    ctx.effect(set_ready, item.key, ended.get("done", 0))
    return ended


@pieces.stage(**SETTINGS)
async def embed(item: Item, ctx: Context) -> None:
    key = ctx.idempotency_key("vector")
    value = await ctx.once("vector", call_provider, item.key, "vector", key, cost=PRICE)
    assert value == answer_to(item.key, "vector")
    ctx.effect(save_vector, item.data["document"], item.data["n"], value["text"])


@connections.stage(**SETTINGS)
def link(item: Item, ctx: Context) -> None:
    paid(ctx, "links")
    ctx.effect(save_connections, item.key)


gathered = Pipeline("gathered")
STEPS = [f"step-{n}" for n in range(8)]


@gathered.stage(**SETTINGS)
async def steps(item: Item, ctx: Context) -> dict[str, Any]:
    """Steps that end in any order, started in any order."""
    names = random.sample(STEPS, len(STEPS))

    async def step(name: str) -> Any:
        await asyncio.sleep(random.random() * 0.02)
        key = ctx.idempotency_key(name)
        return (await ctx.once(name, call_provider, item.key, name, key, cost=PRICE))["text"]

    return dict(zip(names, await asyncio.gather(*map(step, names)), strict=True))


def _one_call(name: str, **how: Any) -> Pipeline:
    pipeline = Pipeline(name)
    isolate = how.pop("isolate", None)

    @pipeline.stage(isolate=isolate, **SETTINGS)
    def call(item: Item, ctx: Context) -> dict[str, Any]:
        tell("start", key=item.key, stage="call", attempt=ctx.attempt)
        value = paid(ctx, "call", **how)
        ctx.effect(save_document, item.key, value["text"])
        return value

    return pipeline


def ask_provider(idempotency: str) -> Any:
    found = look_up(idempotency)
    return CallAgain() if found is None else found


together = Pipeline("together")


@together.stage(batch=8, **SETTINGS)
def call_together(items: list[Item], ctx: BatchContext) -> list[Any]:
    """One paid call for all items that have no answer yet."""

    def call(some: list[Item]) -> dict[str, Any]:
        keys = [item.key for item in some]
        call_provider(" ".join(keys), "vectors", ctx.idempotency_key("vectors", some))
        return {key: answer_to(key, "vectors") for key in keys}

    for item in items:
        tell("start", key=item.key, stage="call_together", attempt=ctx.of(item).attempt)
    return ctx.once("vectors", call, items, cost=PRICE)  # type: ignore[no-any-return]


called = _one_call("called")
held = _one_call("held", on_doubt="hold")
asked = _one_call("asked", on_doubt=ask_provider)
isolated = _one_call("isolated", isolate="process")

ALL: dict[str, list[Pipeline]] = {
    "books": [books, pieces, connections],
    **{one.name: [one] for one in (gathered, together, called, held, asked, isolated)},
}


def app_for(url: str, name: str = "books") -> Holdfast:
    return Holdfast(url, [one.spec for one in ALL[name]])
