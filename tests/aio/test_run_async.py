"""`run_async` and `add_async`: work for an async program, on its event loop, stopped by cancelling it."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from holdfast import Context, Item, Pipeline, RunFailed
from holdfast.app import Holdfast
from tests.support.event_loops import run_loop
from tests.support.mother import ROOT
from tests.support.waiting import STUCK_SECONDS, wait_for

NAMES = [f"page-{n}" for n in range(20)]


async def until(fact: asyncio.Event) -> None:
    await asyncio.wait_for(fact.wait(), STUCK_SECONDS)


def attempts(url: str, key: str, stage: str = "work") -> tuple[str | None, int]:
    """The state of a stage of an item, and how many attempts it has spent."""
    with Holdfast(url, create=False) as app:
        found = app.show(key).stage(stage)
        return found.state, found.attempts


def leases(url: str) -> int:
    with Holdfast(url, create=False) as app:
        states = [stage.states for one in app.status().pipelines for stage in one.stages]
        assert not app.workers(), "the worker has deregistered"
        assert app.check() == []
        return sum(one.get("in_progress", 0) for one in states)


@pytest.mark.req("P16")
def test_async_handlers_run_on_the_callers_loop_and_sync_ones_beside_it(url: str):
    books = Pipeline("books", store=url)
    seen: list[tuple[str, object]] = []

    @books.stage()
    async def fetch(item: Item, ctx: Context) -> str:
        seen.append(("fetch", asyncio.get_running_loop()))
        return await ctx.once("call", ask, item.key)

    @books.stage(after=fetch)
    def parse(item: Item, ctx: Context) -> str:
        seen.append(("parse", threading.current_thread() is threading.main_thread()))
        return str(ctx.result("fetch")).upper()

    async def ask(key: str) -> str:
        # A future of the caller's loop: awaited on any other, it raises.
        async with shared:
            await asyncio.sleep(0)
        return key

    async def main() -> object:
        nonlocal shared
        shared = asyncio.Semaphore(2)
        assert (await books.add_async(NAMES)).new == len(NAMES)
        summary = await books.run_async()
        assert summary.failed == 0 and not summary.interrupted
        return asyncio.get_running_loop()

    shared: asyncio.Semaphore
    loop = run_loop(main)
    assert set(seen) == {("fetch", loop), ("parse", False)}
    with Holdfast(url) as app:
        assert app.show("page-3").stage("parse").result == "PAGE-3"
        assert app.check() == []


@pytest.mark.req("P16")
def test_the_callers_loop_goes_on_while_sync_handlers_and_the_database_work(url: str):
    """The handler waits for something that only the loop can do."""
    books = Pipeline("books", store=url)
    asked, answered = threading.Event(), threading.Event()

    @books.stage()
    def work(item: Item, ctx: Context) -> bool:
        asked.set()
        return answered.wait(STUCK_SECONDS)

    async def answer() -> None:
        while not asked.is_set():
            await asyncio.sleep(0.005)
        answered.set()

    async def main() -> None:
        await books.add_async(["page-1"])
        await asyncio.gather(books.run_async(), answer())

    run_loop(main)
    with Holdfast(url) as app:
        assert app.show("page-1").stage("work").result is True


@pytest.mark.req("P16")
@pytest.mark.parametrize("kind", ["async", "sync"])
def test_cancelling_hands_work_back_before_the_cancellation_arrives(url: str, kind: str):
    """No attempt is spent, no lease is left, and the next run goes on with the same items."""
    books = Pipeline("books", store=url)
    begun = threading.Event()
    go_on = threading.Event()
    cleaned: list[str] = []

    if kind == "async":

        @books.stage(name="work", max_attempts=1)
        async def work(item: Item, ctx: Context) -> str:
            begun.set()
            try:
                while not go_on.is_set():
                    await asyncio.sleep(0.01)
            except asyncio.CancelledError:
                cleaned.append(item.key)
                raise
            return "done"
    else:

        @books.stage(name="work", max_attempts=1)
        def work_in_thread(item: Item, ctx: Context) -> str:
            begun.set()
            go_on.wait(STUCK_SECONDS)
            return "done"

    async def main() -> None:
        await books.add_async(["page-1", "page-2"])
        running = asyncio.create_task(books.run_async(grace=0))
        await asyncio.to_thread(begun.wait, STUCK_SECONDS)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        # Facts at the moment in which the caller goes on.
        assert await asyncio.to_thread(leases, url) == 0
        assert await asyncio.to_thread(attempts, url, "page-1") == ("pending", 0)
        assert sorted(cleaned) == (["page-1", "page-2"] if kind == "async" else [])
        go_on.set()
        assert (await books.run_async()).failed == 0

    run_loop(main)
    assert attempts(url, "page-1") == ("done", 1)


@pytest.mark.req("P16")
def test_a_cancelled_run_lets_running_handlers_end_within_their_grace(url: str):
    books = Pipeline("books", store=url)

    async def main() -> None:
        begun, go_on = asyncio.Event(), asyncio.Event()

        @books.stage()
        async def work(item: Item, ctx: Context) -> str:
            begun.set()
            await go_on.wait()
            return "saved"

        await books.add_async(["page-1"])
        running = asyncio.create_task(books.run_async(grace=STUCK_SECONDS))
        await until(begun)
        running.cancel()
        await asyncio.sleep(0)
        go_on.set()
        with pytest.raises(asyncio.CancelledError):
            await running

    run_loop(main)
    assert attempts(url, "page-1") == ("done", 1)


@pytest.mark.req("P16")
def test_cancelled_a_second_time_it_does_not_wait_for_the_grace(url: str):
    books = Pipeline("books", store=url)

    async def main() -> None:
        begun = asyncio.Event()

        @books.stage()
        async def work(item: Item, ctx: Context) -> None:
            begun.set()
            await asyncio.Event().wait()

        await books.add_async(["page-1"])
        running = asyncio.create_task(books.run_async(grace=10 * STUCK_SECONDS))
        await until(begun)
        running.cancel()
        await asyncio.sleep(0)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running

    run_loop(main)
    assert attempts(url, "page-1") == ("pending", 0)
    assert leases(url) == 0


@pytest.mark.req("P16")
def test_a_signal_handler_that_cancels_it_need_not_wake_the_loop(url: str):
    """As that of a notebook's kernel, which cannot be interrupted otherwise: here the loop has nothing else to do."""
    books = Pipeline("books", store=url)
    begun, go_on = threading.Event(), threading.Event()

    @books.stage(max_attempts=1)
    def work(item: Item, ctx: Context) -> None:
        begun.set()
        go_on.wait(STUCK_SECONDS)

    def interrupt() -> None:
        begun.wait(STUCK_SECONDS)
        os.kill(os.getpid(), signal.SIGUSR1)

    async def main() -> None:
        await books.add_async(["page-1"])
        running = asyncio.create_task(books.run_async(grace=0))
        loop = asyncio.get_running_loop()
        before = signal.signal(signal.SIGUSR1, lambda *_: loop.call_soon(running.cancel))
        threading.Thread(target=interrupt).start()
        try:
            with pytest.raises(asyncio.CancelledError):
                await running
        finally:
            signal.signal(signal.SIGUSR1, before)
            go_on.set()

    run_loop(main)
    assert attempts(url, "page-1") == ("pending", 0)
    assert leases(url) == 0


@pytest.mark.req("P16")
def test_a_program_that_ends_without_waiting_for_its_run_hands_the_work_back(url: str):
    """`asyncio.run` cancels every task at its end: those of handlers too, which have not failed by that."""
    books = Pipeline("books", store=url)
    cancelled: list[str] = []

    async def main() -> asyncio.Task[object]:
        begun = asyncio.Event()

        @books.stage(max_attempts=1)
        async def work(item: Item, ctx: Context) -> None:
            begun.set()
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                cancelled.append(item.key)
                raise

        await books.add_async(["page-1"])
        running = asyncio.create_task(books.run_async(grace=10 * STUCK_SECONDS))
        await until(begun)
        return running

    assert run_loop(main).cancelled()
    assert cancelled == ["page-1"]
    assert attempts(url, "page-1") == ("pending", 0)
    assert leases(url) == 0


@pytest.mark.req("P16")
def test_a_handler_that_cancels_its_own_task_has_failed(url: str):
    books = Pipeline("books", store=url)

    @books.stage(max_attempts=1)
    async def work(item: Item, ctx: Context) -> None:
        me = asyncio.current_task()
        assert me is not None
        me.cancel()
        await asyncio.sleep(0)

    async def main() -> None:
        await books.add_async(["page-1"])
        with pytest.raises(RunFailed):
            await books.run_async(raise_on_failure=True)

    run_loop(main)
    assert attempts(url, "page-1") == ("exhausted", 1)


@pytest.mark.req("P16")
def test_two_runs_of_two_pipelines_go_side_by_side(url: str):
    """Each needs the other to go on: one after the other they would wait in vain."""
    met = asyncio.Event(), asyncio.Event()
    pipelines = []
    for mine, other, name in ((*met, "books"), (*reversed(met), "films")):
        one = Pipeline(name, store=url)

        @one.stage(name=f"{name}-work")
        async def work(item: Item, ctx: Context, mine: asyncio.Event = mine, other: asyncio.Event = other) -> None:
            mine.set()
            await until(other)

        pipelines.append(one)

    async def main() -> None:
        for one in pipelines:
            await one.add_async([f"{one.name}-1"])
        summaries = await asyncio.gather(*(one.run_async() for one in pipelines))
        assert [summary.failed for summary in summaries] == [0, 0]

    run_loop(main)
    assert attempts(url, "books-1", "books-work") == ("done", 1)
    assert attempts(url, "films-1", "films-work") == ("done", 1)


@pytest.mark.req("P16")
def test_it_installs_no_signal_handlers_unless_asked(url: str):
    books = Pipeline("books", store=url)
    seen: list[bool] = []

    @books.stage()
    async def work(item: Item, ctx: Context) -> None:
        seen.append(signal.getsignal(signal.SIGTERM) is before)

    before = signal.getsignal(signal.SIGTERM)

    async def main() -> None:
        await books.add_async(["page-1"])
        await books.run_async()
        await books.add_async(["page-2"])
        await books.run_async(signals=True)

    run_loop(main)
    assert seen == [True, False]
    assert signal.getsignal(signal.SIGTERM) is before


@pytest.mark.req("P16")
def test_without_an_end_it_works_until_it_is_cancelled(url: str):
    books = Pipeline("books", store=url)

    async def main() -> None:
        done: asyncio.Queue[str] = asyncio.Queue()

        @books.stage()
        async def work(item: Item, ctx: Context) -> None:
            done.put_nowait(item.key)

        serving = asyncio.create_task(books.run_async(until_drained=False, grace=0))
        for key in ("page-1", "page-2"):
            await books.add_async([key])
            assert await asyncio.wait_for(done.get(), STUCK_SECONDS) == key
        serving.cancel()
        with pytest.raises(asyncio.CancelledError):
            await serving

    run_loop(main)
    assert leases(url) == 0


@pytest.mark.req("P16")
def test_a_connection_that_was_open_when_the_worker_began_ends_when_the_program_closes_it(url: str):
    """The processes that a worker forks must not keep it open: a client of a web application would wait for its end."""
    books = Pipeline("books", store=url)

    async def main() -> None:
        ready: asyncio.Queue[asyncio.StreamWriter] = asyncio.Queue()
        server = await asyncio.start_server(lambda _, writer: ready.put_nowait(writer), "127.0.0.1", 0)
        reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
        accepted = await ready.get()
        begun = asyncio.Event()

        @books.stage()
        async def work(item: Item, ctx: Context) -> None:
            begun.set()

        await books.add_async(["page-1"])
        serving = asyncio.create_task(books.run_async(until_drained=False, grace=0))
        await until(begun)
        accepted.close()
        assert await asyncio.wait_for(reader.read(), STUCK_SECONDS) == b""
        serving.cancel()
        await asyncio.wait([serving])
        writer.close()
        server.close()

    run_loop(main)


PROGRAM = """
import asyncio, sys
from pathlib import Path
from holdfast import Pipeline

books = Pipeline("books", store=sys.argv[1])

@books.stage(max_attempts=1)
async def work(item, ctx):
    Path(sys.argv[2]).touch()
    await asyncio.Event().wait()

async def main():
    await books.add_async(["page-1"])
    summary = await books.run_async(grace=0, signals=sys.argv[3] == "asked")
    print("interrupted", summary.interrupted)

asyncio.run(main())
"""


@pytest.mark.req("P16")
@pytest.mark.parametrize(
    ("number", "signals", "code", "said"),
    [
        (signal.SIGINT, "not asked", -signal.SIGINT, ""),
        (signal.SIGINT, "asked", 0, "interrupted True\n"),
        (signal.SIGTERM, "asked", 0, "interrupted True\n"),
    ],
    ids=["Ctrl-C", "Ctrl-C, asked", "SIGTERM, asked"],
)
def test_a_signal_ends_a_program_in_order(
    url: str, tmp_path: Path, number: signal.Signals, signals: str, code: int, said: str
):
    """Ctrl-C cancels what `asyncio.run` runs, as in any other program."""
    file, begun = tmp_path / "program.py", tmp_path / "begun"
    file.write_text(PROGRAM)
    process = subprocess.Popen(
        [sys.executable, str(file), url, str(begun), signals],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        wait_for(begun.exists)
        process.send_signal(number)
        out, errors = process.communicate(timeout=STUCK_SECONDS)
    finally:
        process.kill()
    assert (process.returncode, out) == (code, said), errors
    assert attempts(url, "page-1") == ("pending", 0)
    assert leases(url) == 0
