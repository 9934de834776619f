"""How long the store takes to answer what people ask."""

from __future__ import annotations

from collections.abc import Callable
from statistics import median
from typing import Any

from benchmarks.board import now
from benchmarks.child import most_memory_mb
from holdfast import Holdfast

TIMES = 15


def ask(app: Holdfast, items: int) -> dict[str, float]:
    """Milliseconds per question, the median of several; the first answer, which opens files, does not count. And the memory
    of whoever has asked them all."""
    middle = items // 2
    [somebody] = app.items(after=middle, most=1)
    asked: dict[str, Callable[[], Any]] = {
        "status": app.status,
        "page": lambda: app.items(after=middle, most=100),
        "done": lambda: app.items(state="done", after=middle, most=100),
        "one": lambda: app.show(somebody.key),
        "events": lambda: app.events(most=100),
    }
    taken = {f"{name}_ms": _milliseconds(question) for name, question in asked.items()}
    return taken | {"memory_mb": most_memory_mb()}


def _milliseconds(question: Callable[[], Any]) -> float:
    taken = []
    for _ in range(TIMES + 1):
        began = now()
        question()
        taken.append(1000 * (now() - began))
    return median(taken[1:])
