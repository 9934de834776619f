"""A store of one contender on one database, and its processes, for as long as one measurement takes."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from benchmarks import children
from benchmarks.board import Board
from benchmarks.child import Facts, Order
from benchmarks.contenders import Contender
from benchmarks.databases import Database


class Place:
    """Gives orders to a contender about one store."""

    def __init__(self, contender: Contender, database: Database, url: str, folder: Path, seconds: float) -> None:
        self.contender = contender
        self.database = database
        self.url = url
        self.folder = folder
        self._seconds = seconds
        self._command = contender.command()

    def order(self, operation: str, **given: Any) -> Order:
        return Order(operation, self.url, kind=self.contender.kind, **given)

    def run(self, operation: str, **given: Any) -> Facts:
        """Have it done in a process of its own: nothing is left over from the measurement before."""
        return children.run(self._command, self.order(operation, **given), self._seconds)

    def run_together(self, processes: int, operation: str, **given: Any) -> list[Facts]:
        return children.run_together(self._command, [self.order(operation, **given)] * processes, self._seconds)

    def serve(self, **given: Any) -> children.Child:
        """A worker that works until it is ended."""
        return self.start("serve", **given)

    def start(self, operation: str, **given: Any) -> children.Child:
        """Have it begun; the child says what it found when it has ended."""
        return children.start(self._command, self.order(operation, **given), self._seconds)

    def board(self, items: int) -> Board:
        """A board that the orders may name by `board_file`."""
        return Board.make(self.folder / "board", items)

    @property
    def board_file(self) -> str:
        return str(self.folder / "board")


@contextmanager
def fresh_place(contender: Contender, database: Database, seconds: float) -> Iterator[Place]:
    """A place with an empty store, which is removed afterwards."""
    with kept_place(contender, database, seconds) as (place, drop):
        try:
            yield place
        finally:
            drop()


@contextmanager
def kept_place(
    contender: Contender, database: Database, seconds: float, url: str | None = None
) -> Iterator[tuple[Place, Callable[[], None]]]:
    """A place with a store that stays until it is dropped."""
    with tempfile.TemporaryDirectory(prefix="hf-board-") as folder:
        where = database.fresh() if url is None else url
        yield Place(contender, database, where, Path(folder), seconds), lambda: database.drop(where)
