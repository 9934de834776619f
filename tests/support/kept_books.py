"""Pipelines for worker processes whose handlers keep content."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

from holdfast import Backoff, Context, Item, Pipeline

QUICK = Backoff(first_seconds=0.02, most_seconds=0.05)

kept = Pipeline("kept")


def page_of(key: str) -> bytes:
    """Content that takes several writes."""
    return key.encode() * 1_500_000


@kept.stage(backoff=QUICK)
def render(item: Item, ctx: Context) -> Any:
    """Half of the items share their page with another."""
    return {"page": ctx.keep(page_of(str(item.data["page"])), name="page")}


@kept.stage(after=render, backoff=QUICK)
def read(item: Item, ctx: Context) -> Any:
    page = ctx.result(render)["page"]
    assert ctx.blob(page).read() == page_of(str(item.data["page"]))
    return {"page": page, "note": ctx.keep(f"read {item.key}".encode())}


signed = Pipeline("signed")


@signed.stage(backoff=QUICK)
def sign(item: Item, ctx: Context) -> Any:
    """Content that tells who has kept it."""
    mine = ctx.keep(f"{item.key} by {os.getpid()}".encode())
    gate = Path(str(item.data["gate"]))
    while item.data.get("waits") == ctx.attempt and not gate.exists():
        time.sleep(0.01)
    return mine
