"""A small library, its provider, and a store: what the tests of examples.documents play on."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from decimal import Decimal
from pathlib import Path
from typing import Any

import sqlalchemy as sa

from examples.documents.demo import violations
from examples.documents.fakes.fake_library import BOOK_OF_61, chapters, write_book_of, write_epub, write_html
from examples.documents.fakes.fake_model import FakeModel, read_ledger
from examples.documents.pipeline import DOCUMENTS, Documents
from examples.documents.settings import Settings
from examples.documents.tables import chunks, documents, links
from holdfast import Holdfast, store_engine
from holdfast.model.states import OPEN
from tests.support.steps import wipe

BOOKS = (BOOK_OF_61, "bees.epub", "salt.html")


def settings(url: str, model_url: str, **changes: Any) -> Settings:
    """Quick: nobody waits for a pause, and no attempt is the last."""
    chosen: dict[str, Any] = {
        "stale": "2s",
        "attempts": 1000,
        "first_pause": 0.01,
        "calls_at_once": 3,
        "concurrency": 3,
    }
    return Settings(store=url, model_url=model_url, **{**chosen, **changes})


def write_books(folder: Path) -> Path:
    """The book of 61 chunks, a smaller one, and a page in an old encoding."""
    folder.mkdir()
    write_book_of(61, folder / BOOK_OF_61)
    write_epub(folder / "bees.epub", "Bees", chapters("bees", seed=1, pages=4))
    write_html(folder / "salt.html", "salt", seed=2, encoding="windows-1252")
    return folder


@contextmanager
def model_on(folder: Path, **how: Any) -> Iterator[FakeModel]:
    """A provider that answers at once, fails now and then, and ends with the test."""
    given = {"fail_every": 5, "limit_every": 7, "retry_after": 0.05, **how}
    with FakeModel(folder / "calls.jsonl", **given) as model:
        thread = threading.Thread(target=model.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
        thread.start()
        yield model
        model.shutdown()


class Scene:
    """A store with documents in it, and what can be said of them."""

    def __init__(self, url: str, books: Path, model: FakeModel, **changes: Any) -> None:
        self.url = url
        self.books = books
        self.model = model
        self.application = Documents(settings(url, model.url, books=books, **changes))
        self.app: Holdfast = self.application.open()

    def add(self) -> None:
        self.application.add(self.app, self.books)

    def run(self) -> None:
        """One worker, in this process, until nothing is left to do."""
        self.app.run(self.application.settings.worker(poll_seconds=0.1, grace_seconds=0.0))

    def begin_anew(self) -> None:
        """Forget everything: items, rows, and what was paid."""
        wipe(self.app.store)
        self.execute(documents.delete())
        self.model.ledger.unlink(missing_ok=True)
        self.app.register()
        self.add()

    # What is there ----------------------------------------------------------------------------------------------------

    def execute(self, statement: Any) -> None:
        with store_engine(self.url).begin() as connection:
            connection.execute(statement)

    def rows(self) -> dict[str, list[tuple[Any, ...]]]:
        """Every row of our own tables, in order, without the count of changes."""
        stable = [column for column in documents.columns if column.name != "revision"]
        found = {}
        with store_engine(self.url).connect() as connection:
            for name, columns in (("documents", stable), ("chunks", chunks.columns), ("connections", links.columns)):
                rows = connection.execute(sa.select(*columns)).all()
                found[name] = sorted(tuple(bytes(v) if isinstance(v, memoryview) else v for v in row) for row in rows)
        return found

    def chunks(self, key: str) -> list[tuple[str, int]]:
        """Its chunks: id and index, in order."""
        wanted = (
            sa.select(chunks.c.id, chunks.c.chunk_index).where(chunks.c.document == key).order_by(chunks.c.chunk_index)
        )
        with store_engine(self.url).connect() as connection:
            return [(id_, n) for id_, n in connection.execute(wanted)]

    def is_done(self) -> bool:
        return not any(OPEN & stage.states.keys() for one in self.app.status().pipelines for stage in one.stages)

    def paid(self) -> Counter[str]:
        """How often each call was charged, by the key it was made with."""
        return Counter(call["idempotency"] for call in read_ledger(self.model.ledger) if float(call["charged"]))

    def doubts(self) -> Counter[str]:
        events = self.app.events(event="in_doubt", pipeline=DOCUMENTS, most=10_000)
        return Counter(event.data["idempotency_key"] for event in events)

    def judge(self, undisturbed: dict[str, list[tuple[Any, ...]]]) -> None:
        """All is as if nothing had happened, and nothing was paid twice that holdfast does not tell of."""
        assert self.is_done()
        assert self.app.check() == []
        assert violations(self.url) == []
        assert len(self.chunks(BOOK_OF_61)) == 61
        found = self.rows()
        for table, rows in undisturbed.items():
            assert found[table] == rows, table
        paid, doubts = self.paid(), self.doubts()
        assert len(paid) == len(BOOKS)
        assert all(n <= 1 + doubts[key] for key, n in paid.items()), (paid, doubts)
        recorded = {row.item: (row.costs, row.payments) for row in self.app.costs(["item"]).sums}
        assert recorded == dict.fromkeys(BOOKS, (Decimal("0.4"), 1))

    def close(self) -> None:
        self.app.close()
