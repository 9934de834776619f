"""What is tested: a file, or the file that defines a pipeline."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from holdfast.errors import UsageError
from holdfast.model.functions import named
from holdfast.pipeline import Pipeline


def file_of(subject: str | Path | Pipeline[Any]) -> str:
    """A file, or a dotted module, from which another process can load the pipeline."""
    if not isinstance(subject, Pipeline):
        return os.fspath(subject)
    for module in list(sys.modules.values()):
        if any(value is subject for value in list(getattr(module, "__dict__", {}).values())):
            place = getattr(module, "__file__", None)
            if place is not None:
                return str(place)
    raise UsageError(
        f"pipeline {subject.name!r} is in no module, so no other process can load it: make it at the top level of a file"
    )


def function_of(setup: str | Callable[[str], Any] | None, file: str) -> str | None:
    """The name by which another process can find a function."""
    if setup is None or isinstance(setup, str):
        return setup
    module, name = getattr(setup, "__module__", ""), getattr(setup, "__qualname__", "")
    home = sys.modules.get(module)
    if named(home, name) is not setup:
        raise UsageError(f"setup: {setup!r} is no function of a module, so no other process can find it")
    return str(name) if getattr(home, "__file__", None) == os.path.realpath(file) else f"{module}:{name}"


def choose(given: str | None, subject: object, known: Sequence[str], file: str) -> str:
    """The pipeline of a file that the items are for."""
    wanted = given or (subject.name if isinstance(subject, Pipeline) else None)
    name = wanted or (known[0] if len(known) == 1 else None)
    if name is None or name not in known:
        said = f"{file} has no pipeline {name!r}" if name else f"{file} has several pipelines"
        raise UsageError(f"{said}: say which of {', '.join(known)} the item is for, with --pipeline")
    return name
