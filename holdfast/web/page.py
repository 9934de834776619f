"""What a page is: a declaration from which HTML, JSON, CSV and live updates are made.

    page = Page(
        name="workers",                     # templates/workers.html; the address is workers, workers.json, workers.csv
        title="Workers",
        place=60,                           # in the navigation, ascending; None for a page that others link to
        filters=(Filter("state", …),),      # the parameters of its address
        ask=lambda app, query: app.workers(),
    )

`ask` runs in a thread with an app that only reads, and returns an answer of `holdfast.answers`, a tuple of them, or a frozen
dataclass of such answers. It must not depend on who asks: everybody who looks at the same address shares one answer. The
template gets it as `answer`, with `query`, `page`, `access` and what `view` makes of the answer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from holdfast.app import Holdfast
from holdfast.web.filters import NUMBER, Filter, Query

Reader = Holdfast


def _no_view(answer: Any, query: Query) -> Mapping[str, Any]:
    return {}


def _the_rows(answer: Any) -> Iterable[Any]:
    if answer is None:
        return ()
    return answer if isinstance(answer, (tuple, list)) else (answer,)


@dataclass(frozen=True, slots=True)
class Page:
    name: str
    title: str
    ask: Callable[[Reader, Query], Any] | None = None
    #: In place of `ask`, for a question that reads a whole pipeline: made in the background, see `walks.py`.
    walk: Callable[[Reader, Query, Callable[[float], None]], Any] | None = None
    place: int | None = None
    #: Below the dashboard's own address, with parts in braces as Starlette has them: `actions/{number:holdfast_number}`.
    path: str = ""
    filters: tuple[Filter, ...] = ()
    #: More values for the template, made of the answer alone.
    view: Callable[[Any, Query], Mapping[str, Any]] = _no_view
    #: What the lines of the CSV are: answers, or mappings.
    rows: Callable[[Any], Iterable[Any]] = _the_rows
    #: The names of its columns, which stand in it also if it has no lines.
    columns: tuple[str, ...] = ()
    #: The page whose entry in the navigation is the current one, if it is not this one.
    under: str = ""
    #: Whether open tabs follow what changes.
    is_live: bool = True
    template: str = field(default="")

    def __post_init__(self) -> None:
        object.__setattr__(self, "path", self.path or self.name)
        object.__setattr__(self, "template", self.template or f"{self.name}.html")

    def address(self, parts: Mapping[str, Any]) -> str:
        """The path with its parts filled in."""
        filled = self.path
        for name, value in parts.items():
            filled = filled.replace(f"{{{name}:{NUMBER}}}", str(value))
        return filled
