"""W10: the results of very many items as a file."""

from __future__ import annotations

from benchmarks.contenders import RAW, Contender
from benchmarks.databases import Database
from benchmarks.place import kept_place
from benchmarks.workload import Case, Figure, Figures, Options, Workload, whole

FORMATS = ("jsonl", "csv", "parquet")


class Exporting(Workload):
    """Stores are filled once: an export changes nothing."""

    name = "W10"
    title = "results as a file"
    figures = (
        Figure("rate", "rows/s", whole),
        Figure("cpu_us", "CPU µs per row", whole, rises=False),
        Figure("memory_mb", "memory MB", whole, rises=False),
    )

    def __init__(self) -> None:
        self._kept: dict[str, tuple[Database, str]] = {}

    def cases(self, options: Options) -> list[Case]:
        rows = f"{options.sizes[-1]:,} rows"
        return [Case(f"{format}, {rows}", {"format": format}) for format in FORMATS]

    def takes_part(self, contender: Contender, database: Database, case: Case) -> bool:
        """Written by hand, there are lines of JSON."""
        return super().takes_part(contender, database, case) and (
            contender is not RAW or case.settings["format"] == "jsonl"
        )

    def measure(self, contender: Contender, database: Database, case: Case, options: Options) -> Figures:
        known = self._kept.get(database.title)
        with kept_place(contender, database, options.patience_seconds, known[1] if known else None) as (place, _):
            items = options.sizes[-1]
            if known is None:
                place.run("fill", items=items, state="done")
                self._kept[database.title] = (database, place.url)
            found = place.run("export", items=items, format=case.settings["format"])
        return {
            "rate": items / found["seconds"],
            "cpu_us": 1e6 * found["cpu_seconds"] / items,
            "memory_mb": found["memory_mb"],
        }

    def close(self) -> None:
        for database, url in self._kept.values():
            database.drop(url)
        self._kept.clear()
