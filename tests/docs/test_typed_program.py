"""A typed program as the guide shows it: it runs, and type checkers know its values."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.docs.test_guides import blocks

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.req("P13")

[PROGRAM] = blocks(ROOT / "docs/guide/typed-values.md", "python")

#: The same program with more of everything, and what a checker says about each expression.
MORE = """
from typing import Any, TypedDict

import msgspec
from holdfast import BatchContext, Blob, RetryLater, Skip
from holdfast.aio import Holdfast
from holdfast.providers import prepare


class Count(TypedDict):
    n: int


class Chunk(msgspec.Struct):
    text: str


@books.stage(after=summarise, version="2")
async def chunk(item: Item[Book], ctx: Context) -> list[Chunk] | Skip:
    return [Chunk(ctx.result(summarise).text)]


@books.stage(after=chunk, batch=8)
async def embed(items: list[Item[Book]], ctx: BatchContext) -> list[Count | RetryLater]:
    return [Count(n=len(ctx.of(item).result(chunk))) for item in items]


@books.stage(after=chunk, returns=Count)
async def count(item: Item[Book], ctx: Context) -> dict[str, Any]:
    return {"n": 1}


plain = Pipeline("plain")


@plain.stage()
def untyped(item: Item, ctx: Context) -> dict[str, int]:
    return {"pages": item.data["pages"]}


common: dict[str, Any] = {"max_attempts": 3}


@plain.stage(after=untyped, **common)
def usual(item: Item, ctx: Context) -> list[int]:
    return [*ctx.result(untyped).values()]


@plain.stage(after=untyped)
def loose(item: Item, ctx: Context) -> dict[str, Any]:
    return {}


@plain.stage(after=loose)
async def awaited(item: Item, ctx: Context) -> Summary | Skip:
    return Summary(text="", words=1)


@plain.stage(after=loose)
async def awaited_loose(item: Item, ctx: Context) -> dict[str, Any]:
    return {}


@plain.stage(after=awaited, batch=8)
def many(items: list[Item], ctx: BatchContext) -> list[Summary]:
    return [ctx.of(item).result(awaited) for item in items]


@plain.stage(after=awaited, batch=8)
def many_loose(items: list[Item], ctx: BatchContext) -> list[dict[str, Any]]:
    return [{} for item in items]


@plain.stage(after=awaited, returns=list[Summary])
def declared(item: Item, ctx: Context) -> Any:
    return []


@plain.stage(after=awaited, returns=Summary)
async def declared_awaited(item: Item, ctx: Context) -> dict[str, Any]:
    return {}


@plain.stage(after=loose)
def perhaps(item: Item, ctx: Context) -> Summary | Skip | None:
    answer: Summary = ctx.options(parse=Summary).call("summary", dict)
    return answer if answer.words else Skip("empty")


@plain.stage(after=loose)
async def kept(item: Item, ctx: Context) -> Blob:
    page: Blob = await ctx.keep(b"")
    return page


def look(item: Item[Book], alone: Item, ctx: Context, pipeline: Pipeline) -> None:
    reveal_type(item.data)  # Book
    reveal_type(alone.data)  # dict[str, Any]
    reveal_type(ctx.result(summarise))  # Summary
    reveal_type(ctx.result(judge))  # str
    reveal_type(ctx.result(chunk))  # list[Chunk]
    reveal_type(ctx.result(embed))  # Count
    reveal_type(ctx.result(count))  # Count
    reveal_type(ctx.result(untyped))  # dict[str, int]
    reveal_type(ctx.result(usual))  # list[int]
    reveal_type(ctx.result("summarise"))  # Any
    reveal_type([one.result for one in books.results(summarise)])  # list[Summary]
    reveal_type(next(iter(books.results(embed))).result)  # Count
    reveal_type(next(iter(books.results("summarise"))).result)  # Any
    reveal_type(ctx.result(awaited))  # Summary
    reveal_type(ctx.result(perhaps))  # Summary | None
    reveal_type(ctx.result(kept))  # Blob
    reveal_type(ctx.result(awaited_loose))  # dict[str, Any]
    reveal_type(ctx.result(many))  # Summary
    reveal_type(ctx.result(many_loose))  # dict[str, Any]
    reveal_type(plain.results(untyped))  # Results[dict[str, int]]
    reveal_type(plain.results(usual))  # Results[list[int]]
    reveal_type(plain.results(loose))  # Results[dict[str, Any]]
    reveal_type(plain.results(awaited))  # Results[Summary]
    reveal_type(plain.results(awaited_loose, state="failed"))  # Results[dict[str, Any]]
    reveal_type(plain.results(many))  # Results[Summary]
    reveal_type(plain.results(many_loose))  # Results[dict[str, Any]]
    reveal_type(plain.results(declared))  # Results[list[Summary]]
    reveal_type(plain.results(declared_awaited))  # Results[Summary]
    reveal_type(books.results(count))  # Results[Count]
    reveal_type(plain.results())  # Results[Any]
    reveal_type(summarise(item, ctx))  # Summary
    reveal_type(summarise)  # Stage[item: Item[Book], ctx: Context], Summary, Summary]
    reveal_type(books)  # Pipeline[Book]
    reveal_type(pipeline)  # Pipeline[dict[str, Any]]
    reveal_type(books.add(["x", {"key": "y"}, ("z", Book(path="", pages=1))]).new)  # int
    look(item, alone, ctx, plain)


class Client:
    async def create(self) -> dict[str, Any]:
        return {}


def ready() -> Client:
    reveal_type(prepare(Client()))  # Client
    return prepare(Client())


async def add(app: Holdfast) -> None:
    reveal_type([one.result async for one in books.results(summarise)])  # list[Summary]
    reveal_type((await books.add_async(["x", {"key": "y"}, ("z", Book(path="", pages=1))])).new)  # int
    reveal_type((await app.add("books", ["x", {"key": "y"}, ("z", Book(path="", pages=1))])).new)  # int
"""

WRONG = """
books.add([("x", Summary(text="", words=1))])
summarise.name.words
def wrong(item: Item[Book], ctx: Context) -> int:
    return ctx.result(summarise)
"""


def wanted() -> list[str]:
    return re.findall(r"reveal_type\(.*\)  # (.*)", MORE)


def plainly(revealed: str) -> str:
    """A type as both checkers would write it."""
    text = re.sub(r"TypedDict\((?:\w+\.)*(\w+), \{.*?\}\)", r"\1", revealed)
    text = re.sub(r"(?:\w+\.)+(?=\w)", "", text)
    return text.replace("[[", "[").replace("[(", "[").replace("), ", "], ")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "program.py").write_text(PROGRAM + MORE)
    (tmp_path / "wrong.py").write_text(PROGRAM + WRONG)
    return tmp_path


def ran(folder: Path, *command: str) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "PYTHONPATH": str(ROOT), "MYPYPATH": str(ROOT)}
    return subprocess.run([sys.executable, *command], cwd=folder, capture_output=True, text=True, env=env)


def test_the_program_of_the_guide_runs(tmp_path: Path) -> None:
    (tmp_path / "books.py").write_text(PROGRAM)
    assert ran(tmp_path, "books.py").returncode == 0
    shown = ran(tmp_path, "-m", "holdfast", "show", "walden", "--json", "--store", "sqlite:///holdfast.db")
    stages = {one["stage"]: one["result"] for one in json.loads(shown.stdout)["stages"]}
    assert stages == {"summarise": {"text": "a book in en", "words": 105600}, "judge": "long"}


def test_mypy_knows_the_types_of_values(folder: Path) -> None:
    # Here, where mypy remembers what it found out about holdfast.
    checked = ran(ROOT, "-m", "mypy", "--strict", str(folder / "program.py"), str(folder / "wrong.py"))
    errors = re.findall(r"(\w+\.py):\d+: error: ", checked.stdout)
    assert errors == ["wrong.py"] * 3, checked.stdout + checked.stderr
    assert [plainly(one) for one in re.findall(r'Revealed type is "(.*)"', checked.stdout)] == wanted()


@pytest.mark.skipif(importlib.util.find_spec("pyright") is None, reason="NOT PROVED HERE: pyright is not installed")
def test_pyright_knows_the_types_of_values(folder: Path) -> None:
    checked = ran(folder, "-m", "pyright", "--pythonpath", sys.executable, "--outputjson", "program.py", "wrong.py")
    if not checked.stdout.startswith("{"):
        pytest.skip(f"NOT PROVED HERE: pyright cannot be run: {checked.stderr[-200:]}")
    found = json.loads(checked.stdout)["generalDiagnostics"]
    errors = [one for one in found if one["severity"] == "error"]
    assert [Path(one["file"]).name for one in errors] == ["wrong.py"] * 3, errors
    said = [one["message"] for one in found if one["severity"] == "information"]
    assert [plainly(re.findall(r' is "(.*)"', one)[0]) for one in said] == wanted()
