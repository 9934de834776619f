"""A folder with a job file and the module that it names; whatever a test imported from there is forgotten afterwards."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from holdfast.jobfile import JobDefinition, JobFileError, load

MODULE = """
from pathlib import Path

with Path(__file__).with_name("imported").open("a") as marks:
    marks.write("once\\n")


def extract(item, ctx):
    return {"n": len(item.key)}


async def chunk(items, ctx):
    return [{} for _ in items]


def count_tokens(item):
    return 100


def estimate(item):
    return "0.40"


def clean(result):
    return result


def newest(old, new):
    return new


def quiet():
    return True


class Shelf:
    def put(self, item, ctx): ...


shelf = Shelf()
LIMIT = 3


def only_item(item): ...
"""


class Folder:
    """Where the job file of a test lies."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.file = path / "holdfast.yaml"

    def write(self, text: str | bytes) -> Path:
        self.file.write_bytes(text.encode() if isinstance(text, str) else text)
        return self.file

    def load(self, text: str | bytes, environ: Mapping[str, str] | None = None, **more: Any) -> JobDefinition:
        return load(self.write(text), environ=environ or {}, **more)

    def wrong(self, text: str | bytes, environ: Mapping[str, str] | None = None, **more: Any) -> list[str]:
        """What is wrong with this text, a line each, without the name of the file."""
        with pytest.raises(JobFileError) as caught:
            self.load(text, environ, **more)
        lines = str(caught.value).splitlines()
        assert all(line.startswith(f"{self.file}:") for line in lines), lines
        return [line.removeprefix(f"{self.file}:") for line in lines]

    @property
    def imports(self) -> int:
        """How often the module was run."""
        mark = self.path / "imported"
        return len(mark.read_text().splitlines()) if mark.exists() else 0


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Folder]:
    monkeypatch.setattr(sys, "path", list(sys.path))
    before = set(sys.modules)
    (tmp_path / "shelf.py").write_text(MODULE)
    yield Folder(tmp_path)
    for name in set(sys.modules) - before:
        if str(getattr(sys.modules[name], "__file__", None)).startswith(str(tmp_path)):
            del sys.modules[name]
