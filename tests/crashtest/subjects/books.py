"""A pipeline as it should be: a paid call, rows of its own, items that follow, an isolated stage and a batch.

books:   extract (a paid call) → chunk (in a process of its own; rows; children) → ready (waits for its pieces)
pieces:  embed (in batches; rows)
held:    ask (a paid call that a person decides about if it is in doubt)
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from holdfast import BatchContext, Context, Item, Pipeline
from holdfast.testing import paid_call
from tests.crashtest.subjects.tables import create, save_chunks, save_document, save_vector

books = Pipeline("books", resources={"model": {"rate": "1/h", "budget": "0.01"}})
pieces = Pipeline("pieces")
held = Pipeline("held")

__all__ = ["books", "create", "held", "pieces"]


def ask_model(key: str) -> dict[str, Any]:
    paid_call("model")
    return {"text": f"call me {key}"}


@books.stage(resource="model", estimate=0.4)
async def extract(item: Item, ctx: Context) -> Any:
    return await ctx.once("model", ask_model, item.key, cost=0.4, resource="model")


@books.stage(after="extract", isolate="process")
def chunk(item: Item, ctx: Context) -> int:
    texts = ctx.result("extract")["text"].split()[1:]
    ctx.effect(save_document, item.key, len(texts))
    ctx.effect(save_chunks, item.key, texts)
    for n, text in enumerate(texts):
        ctx.submit("pieces", f"{item.key}/{n}", {"text": text}, child=True)
    return len(texts)


@books.stage(after="chunk", after_children="pieces")
def ready(item: Item, ctx: Context) -> Any:
    return ctx.children("pieces")


@held.stage()
def ask(item: Item, ctx: Context) -> Any:
    return ctx.once("model", ask_model, item.key, cost=0.4, on_doubt="hold")


@pieces.stage(batch=8)
def embed(items: Sequence[Item], ctx: BatchContext) -> list[dict[str, str]]:
    for item in items:
        ctx.of(item).effect(save_vector, item.key, item.data["text"][::-1])
    return [{"vector": item.data["text"][::-1]} for item in items]
