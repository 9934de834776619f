"""W1: items are added, in bulk and one by one."""

from __future__ import annotations

from benchmarks.contenders import Contender
from benchmarks.databases import Database
from benchmarks.place import fresh_place
from benchmarks.workload import Case, Figure, Figures, Options, Workload, whole


class Adding(Workload):
    name = "W1"
    title = "add items"
    figures = (Figure("rate", "items/s", whole),)

    def cases(self, options: Options) -> list[Case]:
        return [Case("in bulk", {"bulk": True}), Case("one by one", {"bulk": False})]

    def measure(self, contender: Contender, database: Database, case: Case, options: Options) -> Figures:
        bulk = case.settings["bulk"]
        # One by one each is a commit: a tenth shows as much.
        items = options.share(contender, options.items) if bulk else options.share(contender, options.items // 10)
        with fresh_place(contender, database, options.patience_seconds) as place:
            facts = place.run("add", items=items, bulk=bulk)
        return {"rate": items / facts["seconds"]}
