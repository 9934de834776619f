"""Workers in the test's own process."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.bench import Bench


@pytest.fixture
def run(url: str) -> Iterator[Bench]:
    bench = Bench(url)
    yield bench
    bench.close()
