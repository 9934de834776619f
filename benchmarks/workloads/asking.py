"""W8: what people ask, of a store with few items and of one with very many."""

from __future__ import annotations

from benchmarks.contenders import Contender
from benchmarks.databases import Database
from benchmarks.place import Place, kept_place
from benchmarks.workload import Case, Figure, Figures, Options, Workload, milliseconds, whole

FEW = 10_000
ASKED = {
    "status": "status",
    "page": "a page of items",
    "done": "a page of done items",
    "one": "one item",
    "events": "newest events",
}


class Asking(Workload):
    """Stores are filled once: nothing that is asked changes them."""

    name = "W8"
    title = "questions to a store"
    base_title = f"against {FEW:,} items"
    figures = (
        Figure("ms", "median", milliseconds, rises=False),
        Figure("memory_mb", "memory MB", whole, rises=False),
    )

    def __init__(self) -> None:
        self._kept: dict[tuple[str, int], tuple[Database, str]] = {}
        self._answers: dict[tuple[str, int, int], Figures] = {}
        self._asked: dict[tuple[str, str], int] = {}

    def cases(self, options: Options) -> list[Case]:
        many = max(options.sizes[-1], 2 * FEW)
        return [
            case
            for key, name in ASKED.items()
            for case in (
                Case(f"{name}, {FEW:,} items", {"asked": key, "items": FEW}),
                Case(f"{name}, {many:,} items", {"asked": key, "items": many}, f"{name}, {FEW:,} items"),
            )
        ]

    def measure(self, contender: Contender, database: Database, case: Case, options: Options) -> Figures:
        items = case.settings["items"]
        # All questions are asked in one process per round; the cases of that round share its answers.
        turn = self._asked.get((database.title, case.name), 0)
        self._asked[database.title, case.name] = turn + 1
        key = (database.title, items, turn)
        if key not in self._answers:
            self._answers[key] = self._ask(contender, database, items, options)
        answers = self._answers[key]
        return {"ms": answers[f"{case.settings['asked']}_ms"], "memory_mb": answers["memory_mb"]}

    def _ask(self, contender: Contender, database: Database, items: int, options: Options) -> Figures:
        known = self._kept.get((database.title, items))
        with kept_place(contender, database, options.patience_seconds, known[1] if known else None) as (place, _):
            if known is None:
                self._fill(place, items)
            return place.run("ask", items=items)

    def _fill(self, place: Place, items: int) -> None:
        place.run("fill", items=items, state="told")
        self._kept[place.database.title, items] = (place.database, place.url)

    def close(self) -> None:
        for database, url in self._kept.values():
            database.drop(url)
        self._kept.clear()
