"""W9: a stage that uses a resource beside one that does not: how close both come to the ideal, and whether they start alike."""

from __future__ import annotations

from benchmarks.board import Board
from benchmarks.contenders import Contender
from benchmarks.databases import Database
from benchmarks.place import fresh_place
from benchmarks.workload import Case, Figure, Figures, Options, Workload, ratio

STAGES = 2
ITEMS, QUICK = 500, 100
#: The second stage of a chain has so many slots, and every handler takes so long.
SLOTS, SLOT_MS = 25, 300
SLOT_CONCURRENCY = 50
#: Two stages that do not depend on each other, one of them with a resource that limits nothing.
EQUAL_MS = 20
EQUAL_CONCURRENCY = 16


class Sharing(Workload):
    name = "W9"
    title = (
        f"two stages share a worker, one of them with a resource: {SLOTS} slots in a chain, or no limit side by side"
    )
    figures = (
        Figure("ideal", "of the ideal rate", ratio),
        Figure("alike", "starts of equal stages, fewer/more", ratio),
    )

    def cases(self, options: Options) -> list[Case]:
        return [Case("1 process")]

    def measure(self, contender: Contender, database: Database, case: Case, options: Options) -> Figures:
        items = QUICK if options.quick else ITEMS
        chain = self._drain(contender, database, options, items, slots=SLOTS, ms=SLOT_MS, width=SLOT_CONCURRENCY)
        # Slots are in use from the first item that reaches them, one handler after the beginning, until the last one ends.
        ideal = SLOT_MS / 1000 + items / SLOTS * SLOT_MS / 1000
        seconds = max(at for stage in chain for at in stage) - min(chain[0]) + SLOT_MS / 1000
        equal = self._drain(
            contender, database, options, items, slots=0, ms=EQUAL_MS, width=EQUAL_CONCURRENCY, apart=True
        )
        first_out = min(max(stage) for stage in equal)
        starts = [sum(at <= first_out for at in stage) for stage in equal]
        return {"ideal": ideal / seconds, "alike": min(starts) / max(starts)}

    def _drain(
        self,
        contender: Contender,
        database: Database,
        options: Options,
        items: int,
        *,
        slots: int,
        ms: int,
        width: int,
        apart: bool = False,
    ) -> list[list[float]]:
        """When handlers began, by stage."""
        with fresh_place(contender, database, options.patience_seconds) as place:
            board: Board = place.board(items * STAGES)
            shape = {"items": items, "stages": STAGES, "slots": slots, "apart": apart, "handler_ms": ms}
            place.run("add", **shape)
            database.settle()
            place.run_together(1, "drain", concurrency=width, board=place.board_file, **shape)
            return [list(board.began[stage::STAGES]) for stage in range(STAGES)]
