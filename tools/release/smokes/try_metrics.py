"""What is true of a store is printed for a Prometheus."""

from __future__ import annotations

import subprocess
from typing import Any

from holdfast import Pipeline

books = Pipeline("books", store="sqlite:///metrics.db")


@books.stage()
def read(item: Any, ctx: Any) -> None:
    pass


books.add(["walden"])
books.run()
command = ["environment/bin/holdfast", "metrics", "--once", "--store", "sqlite:///metrics.db"]
printed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
assert 'holdfast_stages{pipeline="books",stage="read",state="done"} 1' in printed, printed
print("metrics: works")
