"""What can be known about a user's function before it is called."""

from __future__ import annotations

import inspect
from typing import Any


def named(home: Any, path: str) -> Any:
    """What a dotted name in a module stands for; None if nothing."""
    for part in path.split("."):
        home = getattr(home, part, None)
    return home


def is_async(function: Any) -> bool:
    """Whether calling it returns an awaitable; also true for an object whose `__call__` is async."""
    called = getattr(function, "__call__", None)  # noqa: B004 - looked at, not asked for
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(called)
