"""Pipelines with mistakes that only a crash shows. The stage of each has the name of its mistake."""

from __future__ import annotations

import uuid

import sqlalchemy as sa

from holdfast import Context, Item, Pipeline
from holdfast.testing import paid_call
from tests.crashtest.subjects.tables import create, documents, notes, own_engine

__all__ = ["create"]

TEXTS = ["one", "two", "three"]

outside = Pipeline("outside")
halves = Pipeline("halves")
paying = Pipeline("paying")
telling = Pipeline("telling", resources={"model": {}})
keys = Pipeline("keys")
names = Pipeline("names")
unique = Pipeline("unique")
pieces = Pipeline("pieces")


@outside.stage()
def deletes_then_inserts(item: Item, ctx: Context) -> int:
    engine = own_engine()
    with engine.begin() as connection:
        connection.execute(notes.delete().where(notes.c.document == item.key))
    with engine.begin() as connection:
        connection.execute(
            notes.insert(), [{"document": item.key, "n": n, "text": text} for n, text in enumerate(TEXTS)]
        )
    engine.dispose()
    return len(TEXTS)


@halves.stage()
def takes_what_is_there_for_all(item: Item, ctx: Context) -> int:
    engine = own_engine()
    written = sa.select(sa.func.count()).where(notes.c.document == "half")
    with engine.connect() as connection:
        found = connection.execute(written).scalar_one()
    for n, text in enumerate(TEXTS if not found else []):
        with engine.begin() as connection:
            connection.execute(notes.insert(), {"document": "half", "n": n, "text": text})
    engine.dispose()
    return 0


@paying.stage()
def pays_outside_once(item: Item, ctx: Context) -> str:
    paid_call("model")
    return "text"


@telling.stage()
def tells_what_it_paid_outside_once(item: Item, ctx: Context) -> str:
    ctx.cost(0.4, resource="model")
    return "text"


@keys.stage()
def submits_random_keys(item: Item, ctx: Context) -> None:
    ctx.submit("pieces", uuid.uuid4().hex)


@names.stage()
def names_calls_by_attempt(item: Item, ctx: Context) -> object:
    return ctx.once(f"call {ctx.attempt}", lambda: "text", cost=0.4)


@unique.stage(max_attempts=2)
def cannot_begin_twice(item: Item, ctx: Context) -> None:
    engine = own_engine()
    try:
        with engine.begin() as connection:
            connection.execute(documents.insert(), {"key": item.key, "parts": 3})
    finally:
        engine.dispose()


@pieces.stage()
def embed(item: Item, ctx: Context) -> None:
    """A follow-on."""
