"""Workers as processes of their own, all ended when the test is."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.support.processes import Crew, crew_on


@pytest.fixture
def hire(url: str, tmp_path: Path) -> Iterator[Callable[[str], Crew]]:
    """A crew for one of the pipelines of tests.support.books."""
    with ExitStack() as stack:
        yield lambda name: stack.enter_context(crew_on(url, tmp_path, f"tests.support.books:{name}"))


@pytest.fixture
def crew(hire: Callable[[str], Crew]) -> Crew:
    """A crew for `books`: fetch → extract → save, in threads, three attempts each."""
    return hire("books")
