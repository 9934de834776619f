"""Large content goes to an address that fsspec understands, and comes back."""

from __future__ import annotations

from typing import Any

from holdfast import Pipeline

PAGE = b"Call me Ishmael." * 1000

books = Pipeline("books", store="sqlite:///blobs.db", blobs="memory://smoke/blobs")


@books.stage()
def scan(item: Any, ctx: Any) -> Any:
    return {"page": ctx.keep(PAGE, name="page.txt")}


@books.stage(after="scan")
def measure(item: Any, ctx: Any) -> Any:
    return {"size": len(ctx.blob(ctx.result("scan")["page"]).read())}


books.add(["moby-dick"])
books.run()
assert [row.result for row in books.results("measure")] == [{"size": len(PAGE)}]
print("blobs: works")
