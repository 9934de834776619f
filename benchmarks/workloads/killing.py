"""W6: a worker is killed with a hundred items in flight, and another takes over."""

from __future__ import annotations

import time

from benchmarks.board import Board, now, wait_until
from benchmarks.children import Failed
from benchmarks.contenders import Contender
from benchmarks.databases import Database
from benchmarks.place import Place, fresh_place
from benchmarks.workload import Case, Figure, Figures, Options, Workload, whole

IN_FLIGHT = 100
#: When waiting for a contender that does not take over is given up.
PATIENCE_SECONDS = 60.0


class Killing(Workload):
    """Judged by a file that the handlers write, not by what a database says."""

    name = "W6"
    title = f"kill -9 with {IN_FLIGHT} in flight"
    figures = (
        Figure("seconds", "all running again, s", lambda value: f"{value:.2f}", rises=False),
        Figure("again", "begun again", whole),
        Figure("lost", "lost", whole, rises=False),
        Figure("twice", "done twice", whole, rises=False),
    )

    def cases(self, options: Options) -> list[Case]:
        return [Case(f"a lease of {options.lease_seconds:g} s")]

    def measure(self, contender: Contender, database: Database, case: Case, options: Options) -> Figures:
        with fresh_place(contender, database, options.patience_seconds) as place:
            return _kill(place, options.lease_seconds)


def _kill(place: Place, lease_seconds: float) -> Figures:
    board = place.board(IN_FLIGHT)
    work = {
        "items": IN_FLIGHT,
        "concurrency": IN_FLIGHT,
        "hold": True,
        "lease_seconds": lease_seconds,
        "board": place.board_file,
    }
    place.run("add", items=IN_FLIGHT)
    with place.serve(**work) as first:
        if not wait_until(board.all_started, PATIENCE_SECONDS):
            raise Failed(f"only {_count(board, 1)} of {IN_FLIGHT} were in flight after {PATIENCE_SECONDS:.0f} seconds")
        second = None
        try:
            if not place.contender.successor:
                second = place.serve(**work)
                # The other worker has been there for a while, idle: nothing tells that of every peer.
                time.sleep(lease_seconds)
            first.kill()
            killed = now()
            if second is None:
                second = place.serve(**work)
            all_again = wait_until(lambda: board.all_started(2), PATIENCE_SECONDS, every=0.01)
            seconds = max(board.began) - killed if all_again else None
            again = _count(board, 2)
            board.release()
            wait_until(lambda: sum(map(bool, board.ends)) >= again, PATIENCE_SECONDS, every=0.05)
            # Whoever would do something twice, does it now.
            time.sleep(2 * lease_seconds)
        finally:
            if second is not None:
                second.end()
    ends = list(board.ends)
    lost, twice = sum(n == 0 for n in ends), sum(n > 1 for n in ends)
    return {"seconds": seconds, "again": again, "lost": lost, "twice": twice}


def _count(board: Board, times: int) -> int:
    return sum(n >= times for n in board.starts)
