"""W5: how fast a worker is, and what a claim costs, while the store grows."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

from benchmarks.contenders import ASYNC, POSTGRES, Contender
from benchmarks.databases import Database
from benchmarks.place import Place, kept_place
from benchmarks.workload import Case, Figure, Figures, Options, Workload, milliseconds, whole

#: A store with so many rows is filled once and used in every round: a worker takes only a small part of them.
KEPT = 1_000_000
#: With a transaction left open, dead rows pile up: it takes more items to see what they cost.
LONGER = 4


class Growing(Workload):
    name = "W5"
    title = "a worker under way, with many items in the store"
    base_title = "against the fewest"
    figures = (
        Figure("rate", "items/s", whole),
        Figure("first_ms", "to the first item", milliseconds, rises=False),
        Figure("claim_ms", "claim of 500", milliseconds, rises=False),
        Figure("memory_mb", "memory MB", whole, rises=False),
    )

    def __init__(self) -> None:
        self._kept: dict[tuple[str, str, str], tuple[Database, str]] = {}

    def cases(self, options: Options) -> list[Case]:
        most, rest = options.sizes[-1], options.items
        delayed = min(most, 1_000_000)
        base = f"{rest:,} waiting"
        waiting = sorted({rest, *options.sizes})
        return [
            *(
                Case(f"{size:,} waiting", {"filled": size, "state": "waiting"}, base if size > rest else None)
                for size in waiting
            ),
            Case(f"{delayed:,} delayed", {"filled": delayed, "state": "delayed", "add": rest}, base),
            Case(f"{most:,} done", {"filled": most, "state": "done", "add": rest}, base),
            Case(
                "a transaction left open",
                {"filled": rest * LONGER, "state": "waiting", "open": True},
                base,
                databases=(POSTGRES,),
            ),
        ]

    def takes_part(self, contender: Contender, database: Database, case: Case) -> bool:
        # The peers are filled through their own tables, and only with what waits.
        return super().takes_part(contender, database, case) and (
            contender == ASYNC or case.settings["state"] == "waiting" or not contender.is_peer
        )

    def measure(self, contender: Contender, database: Database, case: Case, options: Options) -> Figures:
        set_ = case.settings
        most = options.share(contender, set_["filled"] if set_.get("open") else options.items)
        if set_["filled"] < options.items and set_["state"] == "waiting":
            most = 0  # too few for a rate: the start of the worker would be most of it
        with self._filled(contender, database, case, options) as place:
            database.settle()
            with _transaction_left_open(place.url) if set_.get("open") else nullcontext():
                facts = place.run("drain_some", most=most, board=place.board_file)
        return {figure.key: facts.get(figure.key) for figure in self.figures}

    @contextmanager
    def _filled(self, contender: Contender, database: Database, case: Case, options: Options) -> Iterator[Place]:
        keep = case.settings["filled"] >= KEPT and case.settings["state"] == "waiting"
        known = self._kept.get((contender.name, database.title, case.name))
        with kept_place(contender, database, options.patience_seconds, known[1] if known else None) as (place, drop):
            try:
                if known is None:
                    filler = contender if contender.is_peer else ASYNC  # the raw loop works on holdfast's tables
                    filling = Place(filler, database, place.url, place.folder, options.patience_seconds)
                    filling.run("fill", items=case.settings["filled"], state=case.settings["state"])
                    if case.settings.get("add"):
                        filling.run("add", items=case.settings["add"])
                    if keep:
                        self._kept[contender.name, database.title, case.name] = (database, place.url)
                place.board(options.items)
                yield place
            finally:
                if not keep:
                    drop()

    def close(self) -> None:
        for database, url in self._kept.values():
            database.drop(url)
        self._kept.clear()


@contextmanager
def _transaction_left_open(url: str) -> Iterator[None]:
    """Somebody looks at the store and forgets to go: what is deleted meanwhile cannot be cleared away."""
    import psycopg

    conn: Any = psycopg.connect(url)
    try:
        conn.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        conn.execute("SELECT count(*) FROM pg_class")
        conn.execute("SELECT txid_current()")
        yield
    finally:
        conn.close()
