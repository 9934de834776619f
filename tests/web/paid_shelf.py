"""A pipeline whose stages cost money, for the pages about money and errors; `holdfast ui` can serve this file."""

from __future__ import annotations

from holdfast import Context, Item, Permanent, Pipeline
from tests.web.conftest import HOSTILE


def paid_books(url: str, version: str = "1") -> Pipeline:
    """Summaries cost 0.40 each; keys that begin with `bad` fail after they were paid for."""
    books = Pipeline("paid", store=url, resources={"gemini": {"budget_per_day": "20.00", "budget": "500.00"}})

    @books.stage()
    def extract(item: Item, ctx: Context) -> str:
        return item.key

    @books.stage(after=extract, resource="gemini", version=version)
    def summarise(item: Item, ctx: Context) -> str:
        tokens = {"tokens_in": 1000, "tokens_out": 50, "tokens_cached": 600, "tokens_reasoning": 20}
        ctx.cost("0.40", facts={"model": HOSTILE[0], **tokens})
        if item.key.startswith("bad"):
            raise Permanent(f"{item.key} says {HOSTILE[0]}")
        return f"about {item.key}, version {version}"

    return books
