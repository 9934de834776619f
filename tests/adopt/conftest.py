"""Engines on both databases, each with a schema or a file of the test's own."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import Engine

from tests.adopt.places import engine_on
from tests.adopt.tables import Jobs
from tests.support.schemas import bare_schema


@pytest.fixture
def url(database: str, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[str]:
    """SQLAlchemy's address of an empty database of the test's own."""
    if database == "sqlite":
        yield f"sqlite:///{tmp_path / 'own.db'}"
        return
    with bare_schema(request.getfixturevalue("postgres")) as address:
        yield address


@pytest.fixture
def engine(url: str) -> Iterator[Engine]:
    engine = engine_on(url)
    yield engine
    engine.dispose()


@pytest.fixture
def jobs(engine: Engine) -> Jobs:
    """A table with every column."""
    return Jobs(engine)
