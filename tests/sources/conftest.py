"""A web server for the test, and a source to look at without any database."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from holdfast.sources import Source, read_source
from holdfast.sources.contract import Found, Kept
from tests.sources.site import Site, serving


@pytest.fixture
def site() -> Iterator[Site]:
    with serving() as site:
        yield site


class Looked:
    """What one look brought: the items by key, what was kept, and what the source said of itself."""

    def __init__(self, source: Source, stream: list[Found | Kept]) -> None:
        self.source = source
        self.stream = stream
        self.all = [one for one in stream if isinstance(one, Found)]
        self.items = {one.key: one.data for one in self.all}
        self.marks = {one.key: one.mark or str(one.data) for one in self.all}
        self.kept = [one.part for one in stream if isinstance(one, Kept)]
        self.bad = source.bad


class Looker:
    """Reads a source and looks at it, again and again with one memory."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.memory: dict[str, Any] = {}

    def open(self, given: dict[str, Any]) -> Source:
        return read_source("s", given, where="test", folder=self.folder).open()

    def __call__(self, given: dict[str, Any]) -> Looked:
        source = self.open(given)
        return Looked(source, list(source.look(self.memory)))


@pytest.fixture
def look(tmp_path: Path) -> Looker:
    return Looker(tmp_path)
