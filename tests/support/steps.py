"""Many short stories on one real database: quick stores, wiped in between, and troubles at chosen steps.

What these tests prove is what a dead, late or cut-off *client* may do to others. That a commit outlives a power cut is
proven elsewhere, so here the files lie in memory where possible, and PostgreSQL does not wait for the disk.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import quote

import pytest

from holdfast import points
from holdfast.errors import StoreConflict, StoreUnavailable
from holdfast.store import AtOnce, Store, Transaction, open_store
from holdfast.store.postgres_address import read_url
from holdfast.store.statements import Statement
from holdfast.testing import ManualClock
from tests.support.schemas import Schemas, address

T = TypeVar("T")

#: Emptied last, in this order: others refer to them.
LAST = ("items", "stages", "pipelines")
#: A deadlock is seen at once, and a commit is not waited for.
PGOPTIONS = "-c synchronous_commit=off -c deadlock_timeout=20ms"


@contextmanager
def quick_url(database: str, request: pytest.FixtureRequest) -> Iterator[str]:
    """The address of an empty store that is quick to write to."""
    if database == "sqlite":
        memory = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
        folder = Path(tempfile.mkdtemp(prefix="holdfast-", dir=memory))
        try:
            yield f"sqlite:///{folder / 'store.db'}"
        finally:
            shutil.rmtree(folder)
        return
    schemas: Schemas = request.getfixturevalue("schemas")
    schema = schemas.take()
    old = os.environ.get("PGOPTIONS")
    os.environ["PGOPTIONS"] = PGOPTIONS
    try:
        yield address(schemas.base, schema)
    finally:
        os.environ.pop("PGOPTIONS") if old is None else os.environ.update(PGOPTIONS=old)
        schemas.give_back(schema)


def own_tables_beside(url: str) -> str:
    """The same address, by which tables of a user's own lie in the store's schema, and go with it."""
    if url.startswith("sqlite:"):
        return url
    return f"{url}&options={quote(f'{PGOPTIONS} -c search_path={read_url(url)[1]}')}"


@contextmanager
def quick_store(database: str, request: pytest.FixtureRequest, clock: ManualClock) -> Iterator[Store]:
    """Such a store with its tables."""
    with quick_url(database, request) as url:
        store = open_store(url, clock=clock)
        store.upgrade()
        try:
            yield store
        finally:
            store.close()


def wipe(store: Store) -> None:
    """Forget everything. Numbers of leases and items go on growing."""

    def work(tx: Transaction) -> None:
        for table in [*(name for name in tables(tx) if name not in LAST), *LAST]:
            ask(tx, f"DELETE FROM holdfast_{table}")

    store.cache.clear()
    store.write(work)
    store.cache.clear()


def tables(tx: Transaction) -> list[str]:
    """Every table of ours but the one that says which version they have."""
    if tx.store.driver.dialect.name == "sqlite":
        rows = ask(tx, "SELECT substr(name, 10) FROM sqlite_master WHERE type = 'table' AND name LIKE 'holdfast%'")
    else:
        schema = tx.store.driver.dialect.table("x").rpartition(".")[0].strip('"')
        rows = ask(tx, "SELECT tablename FROM pg_tables WHERE schemaname = :schema", schema=schema)
    return sorted(name for (name,) in rows if name != "schema_version")


def ask(tx: Transaction, text: str, **params: Any) -> list[tuple[Any, ...]]:
    """SQL of the test's own, written as in store/sql."""
    driver = tx.store.driver
    where = driver.dialect.table(text)
    if where not in _rendered:
        _rendered[where] = driver.dialect.render(text, text)
    return [tuple(row) for row in driver.run(_rendered[where], params)]


#: By dialect, schema and text.
_rendered: dict[str, Statement] = {}


class Trouble:
    """What goes wrong in one write: its reply is lost, or the database fails it once at its n-th statement."""

    KINDS = ("lost reply", "unavailable", "conflict")

    def __init__(self, kind: str, nth: int = 1) -> None:
        self.kind = kind
        self.left = nth
        self.fired = False

    def __call__(self, point: str) -> None:
        if self.fired:
            return
        if self.kind == "lost reply":
            if point == "commit.after":
                self.fired = True
                raise StoreUnavailable("the reply to COMMIT was lost")
        elif point.startswith("store."):
            self.left -= 1
            if self.left <= 0:
                self.fired = True
                raise {"unavailable": StoreUnavailable, "conflict": StoreConflict}[self.kind](f"at {point}")


def write(
    store: Store,
    work: Callable[[Transaction], T],
    *,
    slot: int = 0,
    trouble: Trouble | None = None,
    exclusive: bool = False,
    at_once: AtOnce[T] | None = None,
) -> T:
    """Commit as a worker does: the same write is run again until it is known to have taken place."""
    writing = store.writing(work, slot=slot, exclusive=exclusive, at_once=at_once)
    old = points.listen(trouble)
    try:
        while True:
            try:
                return writing.run()
            except StoreUnavailable:
                if trouble is None:
                    raise
    finally:
        points.listen(old)
