"""A pipeline keeps its store on a PostgreSQL server."""

from __future__ import annotations

import os
import subprocess
from typing import Any

from holdfast import Pipeline

STORE = os.environ["SMOKE_POSTGRES"]

books = Pipeline("books", store=STORE)


@books.stage()
def read(item: Any, ctx: Any) -> Any:
    return {"text": ctx.once("read", item.key.upper, cost="0.40")}


subprocess.run(["environment/bin/holdfast", "db", "upgrade", "--store", STORE], check=True)
books.add(["walden"])
books.run()
assert [row.result for row in books.results("read")] == [{"text": "WALDEN"}]
print("postgres: works")
