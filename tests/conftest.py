"""Fixtures that every test may use: one store on each database, and a clock set by hand."""

from __future__ import annotations

import gc
import os
import secrets
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path

import hypothesis
import psycopg
import pytest
from psycopg import sql

from holdfast.store import Store, open_store
from holdfast.testing import ManualClock
from tests.support import turns
from tests.support.cluster import Cluster
from tests.support.effort import effort
from tests.support.pooler import Pooler, is_behind_a_pooler
from tests.support.schemas import Schemas, address, drop, in_database
from tests.support.temporary import keep_in_memory

#: What a property is tried with.
hypothesis.settings.register_profile("usual", max_examples=effort(40, 200), deadline=None)
hypothesis.settings.load_profile("usual")

pytest_plugins = ["tests.support.side_by_side"]

SERVER = "HOLDFAST_TEST_POSTGRES"
LONG = (
    *turns.SLOW,
    "tests/docs/",
    "tests/store/test_guarantees_beside_old_worker.py",
    "tests/store/test_upgrade_beside_old_worker.py",
)


def pytest_configure(config: pytest.Config) -> None:
    """One PostgreSQL for the whole run, started before the processes that share it; or the one that SERVER names."""
    keep_in_memory()
    if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
        # As in the foreground of a shell, also where the tests run in the background of one.
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if not os.environ.get(SERVER) and not config.option.collectonly:
        cluster = Cluster()
        config.add_cleanup(lambda: os.environ.pop(SERVER, None) and cluster.__exit__(None, None, None))
        os.environ[SERVER] = cluster.__enter__().url()
    turns.set_turn()


def pytest_report_header() -> str:
    return f"slow tests take turns on the two databases: {turns.VARIABLE}={turns.set_turn()}"


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if is_behind_a_pooler():
        for item in items:
            if (mark := item.get_closest_marker("direct")) is not None:
                item.add_marker(pytest.mark.skip(reason=f"not behind a pooler: {mark.args[0]}"))
    waiting = set() if _was_asked_for(config) else turns.waiting(items)
    if waiting:
        config.hook.pytest_deselected(items=[item for item in items if item in waiting])
        items[:] = [item for item in items if item not in waiting]
    # Workers in this process fork, which takes the longer the more memory other tests have left it with. Then come long tests:
    # the short ones at the end leave no process without work for long.
    items.sort(key=lambda item: (not item.nodeid.startswith("tests/worker/"), not item.nodeid.startswith(LONG)))
    # Python looks through all that was loaded so far only once a quarter as much is new. It is not frozen: each worker that a
    # test starts in this process would first count what is, and that takes a fifth of the test's time.
    gc.collect()


def _was_asked_for(config: pytest.Config) -> bool:
    """Who names a file, a test or a word wants to see it on both databases; what failed has had its turn."""
    return (
        bool(config.option.keyword)
        or config.getoption("lf", False)  # unknown without pytest's cache
        or any(arg.rstrip("/") not in ("tests", "") for arg in config.args)
    )


@pytest.fixture(scope="session")
def postgres() -> Iterator[str]:
    """The address of a database of this process's own, on the server that the whole run shares.

    What one process leaves open holds up the others in the same database: an index that is built beside work waits for
    every snapshot there, and no page counts as visible to all before they are gone.
    """
    server = os.environ[SERVER]
    name = f"holdfast_test_{secrets.token_hex(6)}"
    with psycopg.connect(server, autocommit=True) as conn:
        conn.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(name)))
    yield in_database(server, name)
    with psycopg.connect(server, autocommit=True) as conn:
        conn.execute(sql.SQL("DROP DATABASE {} WITH (FORCE)").format(sql.Identifier(name)))


@pytest.fixture(params=turns.DATABASES)
def database(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="session")
def schemas(postgres: str) -> Iterator[Schemas]:
    """Schemas with empty tables, used in turn."""
    schemas = Schemas(postgres)
    yield schemas
    schemas.close()


@pytest.fixture(scope="session")
def pooler(postgres: str) -> Iterator[Pooler]:
    """A transaction pooler in front of that server, for the tests of this process."""
    with Pooler(postgres) as pooler:
        yield pooler


@pytest.fixture(scope="session")
def empty_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A SQLite file with empty tables, to be copied."""
    file = tmp_path_factory.mktemp("empty") / "store.db"
    store = open_store(f"sqlite:///{file}", clock=ManualClock())
    store.upgrade()
    store.close()
    return file


@pytest.fixture
def url(database: str, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[str]:
    """The address of an empty store of its own: its tables are there already."""
    if database == "sqlite":
        shutil.copyfile(request.getfixturevalue("empty_file"), tmp_path / "store.db")
        yield f"sqlite:///{tmp_path / 'store.db'}"
        return
    schemas: Schemas = request.getfixturevalue("schemas")
    schema = schemas.take()
    yield _reached(address(schemas.base, schema), request)
    schemas.give_back(schema)


@pytest.fixture
def bare_url(database: str, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[str]:
    """The address of a store of its own that has no tables yet."""
    if database == "sqlite":
        yield f"sqlite:///{tmp_path / 'store.db'}"
        return
    base = request.getfixturevalue("postgres")
    schema = f"b{secrets.token_hex(6)}"
    yield _reached(address(base, schema), request)
    with psycopg.connect(base, autocommit=True) as conn:
        drop(conn, schema)


def _reached(url: str, request: pytest.FixtureRequest) -> str:
    """The address that a test uses: by way of the pooler if that is wished for."""
    if not is_behind_a_pooler():
        return url
    pooler: Pooler = request.getfixturevalue("pooler")
    return pooler.through(url)


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def store(url: str, clock: ManualClock) -> Iterator[Store]:
    """An up-to-date store on the clock set by hand."""
    store = open_store(url, clock=clock)
    store.upgrade()
    yield store
    store.close()
