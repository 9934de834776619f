"""The spans of a program that traces come from the API package alone; without an SDK there are none."""

from __future__ import annotations

from typing import Any

from opentelemetry import trace

from holdfast import Pipeline

books = Pipeline("books", store="sqlite:///otel.db")
spans: list[bool] = []


@books.stage()
def read(item: Any, ctx: Any) -> None:
    spans.append(trace.get_current_span().is_recording())


books.add(["walden"])
books.run()
assert spans == [False]
print("otel: works")
