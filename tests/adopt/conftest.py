"""Engines on both databases, each with a schema or a file of the test's own."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

import psycopg
import pytest
from psycopg import sql
from sqlalchemy import Engine

from tests.adopt.places import engine_on
from tests.adopt.tables import Jobs


@pytest.fixture
def url(database: str, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[str]:
    """SQLAlchemy's address of an empty database of the test's own."""
    if database == "sqlite":
        yield f"sqlite:///{tmp_path / 'own.db'}"
        return
    base = request.getfixturevalue("postgres")
    schema = f"t{secrets.token_hex(6)}"
    with psycopg.connect(base, autocommit=True) as conn:
        conn.execute(sql.SQL("CREATE SCHEMA {}").format(sql.Identifier(schema)))
        path = quote(f"-csearch_path={schema}")
        address = base.replace("postgresql:", "postgresql+psycopg:", 1)
        yield f"{address}{'&' if '?' in base else '?'}options={path}"
        conn.execute(sql.SQL("DROP SCHEMA {} CASCADE").format(sql.Identifier(schema)))


@pytest.fixture
def engine(url: str) -> Iterator[Engine]:
    engine = engine_on(url)
    yield engine
    engine.dispose()


@pytest.fixture
def jobs(engine: Engine) -> Jobs:
    """A table with every column."""
    return Jobs(engine)
