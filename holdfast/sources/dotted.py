"""Import something from a module by its full name."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

from holdfast.errors import UsageError


def load(path: str, what: str) -> Callable[..., Any]:
    """Import a function; UsageError if there is none of that name."""
    module, _, name = path.rpartition(".")
    try:
        found = getattr(importlib.import_module(module), name, None)
    except Exception as error:
        raise UsageError(f"{what}: {path}: importing {module} raised {type(error).__name__}: {error}") from error
    if found is None:
        raise UsageError(f"{what}: the module {module} has no {name!r}")
    if not callable(found):
        raise UsageError(f"{what}: {path} is a {type(found).__name__}, not a function")
    return found  # type: ignore[no-any-return]
