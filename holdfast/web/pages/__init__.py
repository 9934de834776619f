"""The pages, one file each. A file in this folder that has a `page` is in the dashboard; there is no list to add it to."""

from __future__ import annotations

from functools import cache
from importlib import import_module
from pkgutil import iter_modules

from holdfast.web.page import Page


@cache
def pages() -> tuple[Page, ...]:
    """Every page, in the order of the navigation; those without a place come last."""
    found = [import_module(f"{__name__}.{module.name}").page for module in iter_modules(__path__)]
    return tuple(sorted(found, key=lambda one: (one.place is None, one.place or 0, one.name)))
