"""`holdfast.aio.Holdfast`: the same verbs as the sync app, awaited, for people and for type checkers."""

from __future__ import annotations

import asyncio
import dataclasses
import inspect
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from holdfast import Context, Item, Pipeline, UsageError, aio, app
from tests.support.event_loops import run_loop
from tests.support.mother import ROOT
from tests.support.waiting import STUCK_SECONDS

#: What only the sync app has: a worker whose `run` blocks, the lock of such a run, and the store below.
SYNC_ONLY = {"worker", "one_at_a_time", "answer_within", "store", "scan", "has_blobs"}
#: What only the async one has: the sync app below.
ASYNC_ONLY = {"opened"}
#: Parameters that one of them has: who awaits it, and whether signals stop it.
ONE_SIDED = {"run": {"caller", "signals"}}


def public(kind: type) -> set[str]:
    return {name for name in vars(kind) if not name.startswith("_")}


def parameters(function: Any, name: str) -> dict[str, inspect.Parameter]:
    found = inspect.signature(function).parameters
    return {key: one for key, one in found.items() if key not in ONE_SIDED.get(name, ()) and key != "self"}


@pytest.mark.req("P16")
def test_every_verb_of_the_sync_app_can_be_awaited():
    assert public(aio.Holdfast) - ASYNC_ONLY == public(app.Holdfast) - SYNC_ONLY


@pytest.mark.req("P16")
@pytest.mark.parametrize("name", sorted(public(app.Holdfast) - SYNC_ONLY | {"__init__"}))
def test_a_verb_has_the_parameters_of_the_sync_one(name: str):
    ours = getattr(aio.Holdfast("sqlite:///never-opened.db"), name)
    assert parameters(ours, name) == parameters(getattr(app.Holdfast, name), name)
    assert name == "__init__" or inspect.iscoroutinefunction(ours)
    assert name == "__init__" or ours.__doc__


@pytest.mark.req("P16")
@pytest.mark.parametrize("name", ["add", "run"])
def test_an_async_method_of_a_pipeline_has_the_parameters_of_the_sync_one(name: str):
    """With their annotations: what type checkers accept is the same."""
    ours, theirs = getattr(Pipeline, f"{name}_async"), getattr(Pipeline, name)
    assert parameters(ours, name) == parameters(theirs, name)
    assert inspect.iscoroutinefunction(ours)


@pytest.mark.req("P16")
def test_acts_and_questions_are_answered_as_by_the_sync_app(url: str):
    books = Pipeline("books", store=url)

    @books.stage()
    async def work(item: Item, ctx: Context) -> str:
        return item.key.upper()

    async def main() -> None:
        async with aio.Holdfast(url, [books.spec]) as hold:
            assert (await hold.add("books", ["a", "b"])).new == 2
            await hold.pause("books", reason="lunch")
            assert (await hold.status()).pipeline("books").paused
            assert await hold.resume("books") is True
            summary = await hold.run()
            assert (summary.failed, summary.interrupted) == (0, False)
            shown, items = await asyncio.gather(hold.show("a"), hold.items(pipeline="books"))
            assert shown.stage("work").result == "A"
            assert [one.key for one in items] == ["a", "b"]
            assert await hold.retry(pipeline="books", dry_run=True) == {}
            with pytest.raises(UsageError, match="there is no pipeline 'nowhere'"):
                await hold.add("nowhere", ["a"])
            assert await hold.check() == []

    run_loop(main)


@dataclasses.dataclass
class Length:
    n: int

    def __post_init__(self) -> None:
        self.was_made()

    def was_made(self) -> None:
        """Whenever a result is read back."""


def measured(url: str) -> Pipeline:
    books = Pipeline("books", store=url)

    @books.stage()
    def measure(item: Item, ctx: Context) -> Length:
        return Length(len(item.key))

    books.add([f"book-{n}" for n in range(250)])
    books.run()
    return books


@pytest.mark.req("P14", "P16")
def test_results_are_read_beside_the_event_loop(url: str, monkeypatch: pytest.MonkeyPatch):
    """As those of the app and of the pipeline, to the end or not."""
    books = measured(url)
    threads: list[threading.Thread] = []
    monkeypatch.setattr(Length, "was_made", lambda _: threads.append(threading.current_thread()))

    async def main() -> None:
        async with aio.Holdfast(url, [books.spec]) as hold:
            results = await hold.results("books", "measure")
            assert [one.key async for one in results] == [f"book-{n}" for n in range(250)]
            assert [one async for one in await hold.results("books", since=results.cursor)] == []
        async for one in books.results("measure"):
            assert one.result.n == len(one.key)
            break

    run_loop(main)
    assert len(threads) > 250
    assert threading.main_thread() not in threads


@pytest.mark.req("P14", "P16")
def test_reading_results_that_is_cancelled_ends_with_the_rows_in_hand(url: str, monkeypatch: pytest.MonkeyPatch):
    books = measured(url)
    asked, go_on = threading.Event(), threading.Event()

    def stand_still(_: Length) -> None:
        asked.set()
        assert go_on.wait(STUCK_SECONDS)

    monkeypatch.setattr(Length, "was_made", stand_still)

    async def read() -> None:
        async for _ in books.results("measure"):
            raise AssertionError("the first rows are still being read")

    async def main() -> None:
        reading = asyncio.create_task(read())
        await asyncio.to_thread(asked.wait, STUCK_SECONDS)
        reading.cancel()
        go_on.set()
        with pytest.raises(asyncio.CancelledError):
            await reading

    run_loop(main)


@pytest.mark.req("P16")
def test_the_loop_goes_on_while_a_call_waits(url: str):
    """The iterator waits, in its thread, for something that only the loop can do."""
    asked, answered = threading.Event(), threading.Event()
    books = Pipeline("books")
    books.stage(name="work")(lambda item, ctx: None)

    def keys() -> Any:
        asked.set()
        assert answered.wait(STUCK_SECONDS)
        yield "a"

    async def answer() -> None:
        while not asked.is_set():
            await asyncio.sleep(0.005)
        answered.set()

    async def main() -> None:
        async with aio.Holdfast(url, [books.spec]) as hold:
            added, _ = await asyncio.gather(hold.add("books", keys()), answer())
            assert added.new == 1

    run_loop(main)


@pytest.mark.req("P16")
def test_a_cancelled_call_releases_its_caller_at_once(url: str):
    """The call ends by itself, and the app is closed after it."""
    asked, go_on = threading.Event(), threading.Event()
    books = Pipeline("books")
    books.stage(name="work")(lambda item, ctx: None)

    def keys() -> Any:
        asked.set()
        assert go_on.wait(STUCK_SECONDS)
        yield "a"

    async def main() -> None:
        async with aio.Holdfast(url, [books.spec]) as hold:
            adding = asyncio.create_task(hold.add("books", keys()))
            await asyncio.to_thread(asked.wait, STUCK_SECONDS)
            adding.cancel()
            with pytest.raises(asyncio.CancelledError):
                await adding
            go_on.set()

    run_loop(main)


TYPED = """
from holdfast import Added
from holdfast.aio import Holdfast
from holdfast.answers import Items, Status

async def main() -> None:
    async with Holdfast("sqlite:///x.db") as hold:
        added: Added = await hold.add("books", ["a"], priority=1)
        status: Status = await hold.status()
        items: Items = await hold.items(pipeline="books", most=5)
        print(added.new, status.pipelines, items[0].key)
        await hold.add("books", ["a"], priority="high")
        await hold.show()
        wrong: int = await hold.status()
"""


@pytest.mark.req("P16")
@pytest.mark.parametrize("checker", ["mypy", "pyright"])
def test_type_checkers_know_the_parameters_and_the_answers(tmp_path: Path, checker: str):
    """Three mistakes in the last three lines, each of which is found, and nothing else."""
    file = tmp_path / "typed.py"
    file.write_text(TYPED)
    if checker == "mypy":
        command = [sys.executable, "-m", "mypy", "--strict", "--cache-dir", str(ROOT / ".mypy_cache"), str(file)]
    else:
        pytest.importorskip("pyright", reason="NOT PROVED HERE: what pyright says; it is not installed")
        command = [sys.executable, "-m", "pyright", "--pythonpath", sys.executable, str(file)]
    ran = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if checker == "pyright" and " error" not in ran.stdout:
        pytest.skip(f"NOT PROVED HERE: what pyright says; it cannot be run: {ran.stderr[-200:]}")
    lines = [line for line in ran.stdout.splitlines() if "error" in line and "typed.py:" in line]
    first = TYPED.splitlines().index('        await hold.add("books", ["a"], priority="high")') + 1
    assert [int(line.split("typed.py:")[1].split(":")[0]) for line in lines] == [first, first + 1, first + 2], (
        ran.stdout
    )
