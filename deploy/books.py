"""A pipeline to try a deployment with: two stages, no key, nothing to pay."""

from __future__ import annotations

from holdfast import Context, Item, Pipeline

books = Pipeline("books")


@books.stage()
def read(item: Item, ctx: Context) -> dict[str, str]:
    return {"text": f"This is {item.key}."}


@books.stage(after=read)
def count(item: Item, ctx: Context) -> dict[str, int]:
    return {"words": len(ctx.result("read")["text"].split())}
