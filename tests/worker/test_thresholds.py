"""Every stage has thresholds of its own: how long, how often, how soon again, and what it may cost."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from holdfast import Backoff, Context, Item, Pipeline
from tests.support.bench import QUICK, Bench


@pytest.mark.req("D10")
def test_each_stage_keeps_to_its_own_thresholds_and_the_cost_is_known_per_document(run: Bench):
    """The quick stage is cut off and gives up after two attempts; the slow one, which takes as long, is left alone."""
    books = Pipeline("books", resources={"model": {}})
    notes: list[str] = []

    @books.stage(name="extract", timeout="30s", max_attempts=2, backoff=QUICK)
    async def extract(item: Item, ctx: Context) -> Any:
        ctx.cost("0.40" if item.key == "long" else "0.10", resource="model")
        for page in range(3):
            ctx.progress(page + 1, 3, f"page {page + 1} of 3")
            notes.append(f"{item.key} {page + 1}")
            await asyncio.sleep(0.15 if item.key == "long" else 0)
        return {"pages": 3}

    @books.stage(name="embed", after="extract", timeout="0.2s", max_attempts=2, backoff=Backoff(first_seconds=0.01))
    async def embed(item: Item, ctx: Context) -> int:
        await asyncio.sleep(0.45 if item.key == "long" else 0)
        return 1

    ran = run(books, ["short", "long"])

    assert ran.state("long", "extract") == ran.state("short", "embed") == "done"
    stage = ran.stage("long", "embed")
    assert (stage.state, stage.attempts) == ("exhausted", 2)
    assert "ran longer than 0.2 s" in stage.error
    assert [note for note in notes if note.startswith("long")] == ["long 1", "long 2", "long 3"]
    spent = {one.item: str(one.costs) for one in run.app(books).costs(["item"]).sums}
    assert spent == {"long": "0.4", "short": "0.1"}
