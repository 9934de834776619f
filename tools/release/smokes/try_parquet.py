"""Results become a Parquet file, and a table of Arrow."""

from __future__ import annotations

from typing import Any

from pyarrow import parquet  # type: ignore[import-untyped]

from holdfast import Pipeline

books = Pipeline("books", store="sqlite:///parquet.db")


@books.stage()
def count(item: Any, ctx: Any) -> Any:
    return {"letters": len(item.key)}


books.add(["walden", "emma"])
books.run()
books.results("count").write("letters.parquet")
assert parquet.read_table("letters.parquet").num_rows == 2
assert books.results("count").to_arrow().num_rows == 2
print("parquet: works")
