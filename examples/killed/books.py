"""Forty books, three stages: fetch (async, and not always lucky), extract (in threads), index (five at a time).

Nothing is really fetched; the handlers sleep. The process that runs this is killed by `examples.killed`.
"""

from __future__ import annotations

import asyncio
import logging
import os
import time
from pathlib import Path

from examples.killed.ledger import Ledger
from holdfast import Backoff, BatchContext, Context, Item, Pipeline, Skip

BOOKS = 40
STAGES = ("fetch", "extract", "index")

books = Pipeline("books")
ledger = Ledger(Path(os.environ.get("DEMO_LEDGER", os.devnull)))


@books.stage(max_attempts=5, backoff=Backoff(first_seconds=0.5))
async def fetch(item: Item, ctx: Context) -> dict[str, str]:
    ledger.write("start", item.key, "fetch")
    await asyncio.sleep(0.15)
    if item.data["number"] % 8 == 0 and ctx.attempt == 1:
        raise ConnectionError("the library closed the connection")
    ledger.write("end", item.key, "fetch")
    return {"page": f"page of {item.key}"}


@books.stage(after="fetch")
def extract(item: Item, ctx: Context) -> dict[str, int]:
    ledger.write("start", item.key, "extract")
    words = len(ctx.result("fetch")["page"].split()) * item.data["number"]
    time.sleep(0.1 + 0.01 * item.data["number"])
    ledger.write("end", item.key, "extract")
    return {"words": words}


@books.stage(after="extract", batch=5)
def index(items: list[Item], ctx: BatchContext) -> list[dict[str, int] | Skip]:
    answers: list[dict[str, int] | Skip] = []
    for item in items:
        ledger.write("start", item.key, "index")
    time.sleep(0.3)
    for item in items:
        words = ctx.of(item).result("extract")["words"]
        answers.append({"entries": words // 2} if words > 5 else Skip("too short for an index"))
        ledger.write("end", item.key, "index")
    return answers


if __name__ == "__main__":
    logging.basicConfig(format="          %(message)s")
    books.run(concurrency=4)
