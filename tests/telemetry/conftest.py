"""Workers in the test's own process, and commands."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.cli.conftest import Commands
from tests.support.bench import Bench


@pytest.fixture
def run(url: str) -> Iterator[Bench]:
    bench = Bench(url)
    yield bench
    bench.close()


@pytest.fixture
def cli(url: str) -> Iterator[Commands]:
    commands = Commands(url)
    yield commands
    commands.close()
