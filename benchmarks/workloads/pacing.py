"""W7: items pass four async stages of 5 to 50 ms that share one limit: how much of what is allowed is used."""

from __future__ import annotations

from benchmarks.contenders import Contender
from benchmarks.databases import Database
from benchmarks.place import fresh_place
from benchmarks.workload import Case, Figure, Figures, Options, Workload, ratio, whole

STAGES = 4
#: Begun per second, by all stages of all items in all processes together; and how many at once.
RATE, BURST = 500, 20
CONCURRENCY = 64
ITEMS, QUICK = 2000, 300


class Pacing(Workload):
    name = "W7"
    title = f"{STAGES} async stages of 5–50 ms under a shared limit of {RATE}/s"
    base_title = "against 1 process"
    figures = (
        Figure("used", "used of what is allowed", ratio),
        Figure("rate", "begun/s", whole),
        Figure("cpu_us", "worker CPU µs/step", whole, rises=False),
    )

    def cases(self, options: Options) -> list[Case]:
        one = Case("1 process", {"processes": 1})
        return [one, Case("2 processes", {"processes": 2}, base=one.name)]

    def measure(self, contender: Contender, database: Database, case: Case, options: Options) -> Figures:
        items = QUICK if options.quick else ITEMS
        steps = items * STAGES
        with fresh_place(contender, database, options.patience_seconds) as place:
            board = place.board(steps)
            shape = {"items": items, "stages": STAGES, "rate": RATE}
            place.run("add", **shape)
            database.settle()
            ended = place.run_together(
                case.settings["processes"], "drain", concurrency=CONCURRENCY, board=place.board_file, **shape
            )
            seconds = max(board.began) - min(board.began)
        return {
            "used": steps / (RATE * seconds + BURST),
            "rate": steps / seconds,
            "cpu_us": 1e6 * sum(one["cpu_seconds"] for one in ended) / steps,
        }
