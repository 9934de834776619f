"""W4: an idle worker, one item at a time: how long from adding it until its handler begins."""

from __future__ import annotations

from benchmarks.contenders import Contender
from benchmarks.databases import Database
from benchmarks.place import fresh_place
from benchmarks.sending import WARM_UP
from benchmarks.workload import Case, Figure, Figures, Options, Workload, milliseconds

ITEMS, QUICK = 300, 40


class Waking(Workload):
    name = "W4"
    title = "from adding an item to the start of its handler, in an idle worker"
    figures = (
        Figure("p50", "p50", milliseconds, rises=False),
        Figure("p99", "p99", milliseconds, rises=False),
        Figure("most", "longest", milliseconds, rises=False),
    )

    def cases(self, options: Options) -> list[Case]:
        return [Case("one at a time")]

    def measure(self, contender: Contender, database: Database, case: Case, options: Options) -> Figures:
        items = (QUICK if options.quick else ITEMS) + WARM_UP
        with fresh_place(contender, database, options.patience_seconds) as place:
            place.board(items)
            place.run("add", items=0)
            with place.serve(items=items, board=place.board_file):
                facts = place.run("send", items=items, board=place.board_file)
        taken = sorted(1000 * seconds for seconds in facts["latencies"])
        return {"p50": _part(taken, 0.5), "p99": _part(taken, 0.99), "most": taken[-1]}


def _part(taken: list[float], share: float) -> float:
    return taken[min(len(taken) - 1, int(share * len(taken)))]
