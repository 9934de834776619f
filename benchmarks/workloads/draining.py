"""W2 and W3: items that do nothing pass one stage, and three stages that depend on each other."""

from __future__ import annotations

from benchmarks.contenders import Contender
from benchmarks.databases import Database
from benchmarks.place import fresh_place
from benchmarks.workload import Case, Figure, Figures, Options, Workload, whole


class Draining(Workload):
    """From the start of the first worker until nothing is left: claimed, run, finished."""

    name = "W2"
    title = "drain items of one stage that does nothing"
    base_title = "against 1 process"
    stages = 1
    figures = (
        Figure("rate", "items/s", whole),
        Figure("worker_us", "worker CPU µs/step", whole, rises=False),
        Figure("server_us", "server CPU µs/step", whole, rises=False),
        Figure("memory_mb", "memory MB", whole, rises=False),
    )

    def cases(self, options: Options) -> list[Case]:
        return [
            Case("1 process", {"processes": 1}),
            Case("2 processes", {"processes": 2}, base="1 process"),
        ]

    def takes_part(self, contender: Contender, database: Database, case: Case) -> bool:
        return super().takes_part(contender, database, case) and case.settings["processes"] in contender.processes

    def items(self, options: Options) -> int:
        return options.items

    def measure(self, contender: Contender, database: Database, case: Case, options: Options) -> Figures:
        items = options.share(contender, self.items(options))
        steps = items * self.stages
        with fresh_place(contender, database, options.patience_seconds) as place:
            place.board(items)
            place.run("add", items=items, stages=self.stages)
            database.settle()
            before = database.cpu_seconds()
            ended = place.run_together(
                case.settings["processes"], "drain", items=items, stages=self.stages, board=place.board_file
            )
            after = database.cpu_seconds()
        seconds = max(one["ended"] for one in ended) - min(one["began"] for one in ended)
        server = None if before is None or after is None else 1e6 * (after - before) / steps
        return {
            "rate": steps / seconds,
            "worker_us": 1e6 * sum(one["cpu_seconds"] for one in ended) / steps,
            "server_us": server,
            "memory_mb": max(one["memory_mb"] for one in ended),
        }


class Stepping(Draining):
    """Steps per second: a step is one stage of one item."""

    name = "W3"
    title = "three dependent durable steps per item"
    stages = 3
    figures = (Figure("rate", "steps/s", whole), *Draining.figures[1:])

    def cases(self, options: Options) -> list[Case]:
        return [Case("1 process", {"processes": 1})]

    def items(self, options: Options) -> int:
        # Three thousand where W2 has twenty thousand.
        return max(100, options.items * 3 // 20)
