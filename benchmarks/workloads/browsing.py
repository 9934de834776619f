"""W11: every page of the dashboard, over a store with few items and over one with very many."""

from __future__ import annotations

from pathlib import Path

from benchmarks.contenders import SQLITE, Contender
from benchmarks.databases import Database
from benchmarks.pages import COUNTED, PAGES
from benchmarks.place import kept_place
from benchmarks.workload import Case, Figure, Figures, Options, Workload, milliseconds, whole

FEW = 10_000


class Browsing(Workload):
    """Stores are filled once: looking changes nothing. The ratio is that of the CPU, which neighbours disturb least."""

    name = "W11"
    title = "pages of the dashboard"
    base_title = f"against {FEW:,} items"
    figures = (
        Figure("cpu_ms", "CPU", milliseconds, rises=False),
        Figure("ms", "median", milliseconds, rises=False),
        Figure("p95_ms", "95 %", milliseconds, rises=False),
        Figure("kb", "kB", whole, rises=False),
    )

    def __init__(self) -> None:
        self._filled: dict[tuple[str, int], str] = {}
        self._dropped: list[tuple[Database, str]] = []
        self._found: dict[tuple[str, int, int], Figures] = {}
        self._asked: dict[tuple[str, str], int] = {}

    def cases(self, options: Options) -> list[Case]:
        many = max(options.sizes[-1], 2 * FEW)
        return [
            case
            for name in (COUNTED, *PAGES)
            for case in (
                Case(f"{name}, {FEW:,} items", {"page": name, "items": FEW}),
                Case(f"{name}, {many:,} items", {"page": name, "items": many}, f"{name}, {FEW:,} items"),
            )
        ]

    def measure(self, contender: Contender, database: Database, case: Case, options: Options) -> Figures:
        items = case.settings["items"]
        # All pages are asked for in one process per round; the cases of that round share its figures.
        turn = self._asked.get((database.title, case.name), 0)
        self._asked[database.title, case.name] = turn + 1
        key = (database.title, items, turn)
        if key not in self._found:
            self._found[key] = self._browse(contender, database, items, options)
        return {one.key: self._found[key].get(f"{case.settings['page']}/{one.key}") for one in self.figures}

    def _browse(self, contender: Contender, database: Database, items: int, options: Options) -> Figures:
        known = self._filled.get((database.title, items)) or self._kept(database, items, options)
        with kept_place(contender, database, options.patience_seconds, known) as (place, _):
            if (database.title, items) not in self._filled:
                if known is None or not Path(known.removeprefix("sqlite:///")).exists():
                    place.run("fill_mixture", items=items)
                self._filled[database.title, items] = place.url
                if known is None:
                    self._dropped.append((database, place.url))
            return place.run("browse", items=items)

    def _kept(self, database: Database, items: int, options: Options) -> str | None:
        """Where the store is that outlives the run, if there is one."""
        if options.kept is None or database.kind != SQLITE:
            return None
        options.kept.mkdir(parents=True, exist_ok=True)
        return f"sqlite:///{options.kept.resolve()}/{items}.db"

    def close(self) -> None:
        for database, url in self._dropped:
            database.drop(url)
        self._dropped.clear()
        self._filled.clear()
