"""An open tab follows workers that run, are killed, and are replaced, and a server that is killed and comes back."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from holdfast import Holdfast
from tests.support.mother import ROOT
from tests.support.waiting import wait_for
from tests.web.browser import STUCK_SECONDS, browsing, chromium, served
from tests.web.conftest import books

pytestmark = pytest.mark.req("P17")

#: Its first stage takes until the test lets it go on.
PROGRAM = """
import pathlib, time
from holdfast import Pipeline

books = Pipeline("books")
gate = pathlib.Path(__file__).with_name("gate")


@books.stage()
def extract(item, ctx):
    while not gate.exists():
        time.sleep(0.05)


@books.stage(after=extract)
def chunk(item, ctx):
    return 1
"""

PATIENT_MS = 600_000

Start = Callable[[str], subprocess.Popen[bytes]]


@pytest.fixture
def start(url: str, tmp_path: Path) -> Iterator[Start]:
    """Starts workers, which are gone with the test."""
    (tmp_path / "books.py").write_text(PROGRAM)
    with ExitStack() as ends:

        def begin(name: str) -> subprocess.Popen[bytes]:
            command = [sys.executable, "-m", "holdfast", "worker", "books.py", "--store", url, "--name", name]
            process = subprocess.Popen(command, cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(ROOT)})
            ends.callback(process.wait)
            ends.callback(process.kill)
            return process

        yield begin


def test_a_tab_follows_workers_that_are_killed_and_replaced(url: str, tmp_path: Path, start: Start):
    chromium()
    first = start("first")
    with Holdfast(url) as app, served(url, tmp_path) as address, browsing(address) as tab:
        # On a busy machine questions take long, and are asked once a minute then.
        tab.page.set_default_timeout(PATIENT_MS)
        cell = tab.page.get_by_role("row", name="extract").locator
        # Whatever is seen from here on came through the stream.
        tab.page.evaluate("window.loaded_once = true")
        tab.page.get_by_role("rowheader", name="first").wait_for()
        app.add("books", ["walden"])
        cell("a.in_progress").wait_for()
        first.kill()
        first.wait()
        start("second")
        tab.page.get_by_role("rowheader", name="second").wait_for()
        tab.page.get_by_role("rowheader", name="first").wait_for(state="detached")
        cell("a.in_progress").wait_for()
        (tmp_path / "gate").touch()
        cell("a.done").wait_for()
        tab.page.get_by_role("row", name="chunk").locator("a.done").wait_for()
        assert tab.page.evaluate("window.loaded_once") is True
        assert tab.problems == [] and tab.outside == []


def test_a_tab_says_that_its_server_is_gone_and_goes_on_with_the_next_one(shelf: str, tmp_path: Path):
    chromium()
    server = ExitStack()
    address = server.enter_context(served(shelf, tmp_path))
    with server, browsing(address) as tab:
        tab.page.set_default_timeout(PATIENT_MS)
        tab.go("/items?state=pending")
        tab.page.get_by_text("live", exact=True).wait_for()
        tab.page.evaluate("window.loaded_once = true")
        server.close()
        tab.page.get_by_text("not connected", exact=True).wait_for()
        books(shelf).add(["later"])
        with served(shelf, tmp_path, port=int(address.rpartition(":")[2])):
            tab.page.get_by_role("rowheader", name="later").wait_for()
            tab.page.get_by_text("live", exact=True).wait_for()
        assert tab.page.evaluate("window.loaded_once") is True


def test_a_tab_says_of_when_its_numbers_are_and_that_a_frozen_server_is_silent(shelf: str, tmp_path: Path):
    chromium()
    with served(shelf, tmp_path) as address, browsing(address) as tab:
        tab.page.set_default_timeout(PATIENT_MS)
        tab.page.clock.install()
        tab.go("/items?state=pending")
        tab.page.get_by_text("live", exact=True).wait_for()
        age = tab.page.locator(".age time")
        first = age.get_attribute("datetime")
        # Nothing changes in the store, and still it is looked at again.
        tab.page.wait_for_function("at => document.querySelector('.age time').dateTime > at", arg=first)
        server = int((tmp_path / "ui.pid").read_text())
        os.kill(server, signal.SIGSTOP)
        try:
            tab.page.clock.fast_forward(60_000)
            tab.page.get_by_text("not live: the server is silent", exact=True).wait_for()
            assert (age.text_content() or "").startswith("1 m")
        finally:
            os.kill(server, signal.SIGCONT)
        books(shelf).add(["later"])
        tab.page.get_by_role("rowheader", name="later").wait_for()
        tab.page.get_by_text("live", exact=True).wait_for()
        tab.page.get_by_text("as of now").wait_for()


def test_a_stream_is_closed_while_its_tab_is_hidden(shelf: str, tmp_path: Path):
    chromium()
    with served(shelf, tmp_path) as address, browsing(address) as tab:
        tab.page.set_default_timeout(PATIENT_MS)
        ended: list[str] = []
        tab.page.on("requestfailed", lambda request: ended.append(request.url))
        tab.page.on("requestfinished", lambda request: ended.append(request.url))
        tab.go("/items?state=pending")
        tab.page.get_by_text("live", exact=True).wait_for()
        hide = """hidden => { Object.defineProperty(document, "hidden", { configurable: true, get: () => hidden });
            document.dispatchEvent(new Event("visibilitychange")); }"""
        tab.page.evaluate(hide, True)
        wait_for(lambda: tab.page.wait_for_timeout(50) or any("items.live" in url for url in ended), STUCK_SECONDS)
        with tab.page.expect_request("**/items.live*"):
            tab.page.evaluate(hide, False)


def test_more_pages_than_a_browser_has_connections_load_and_follow_the_store(shelf: str, tmp_path: Path):
    """A browser opens six connections to a server, and a stream is one of them."""
    chromium()
    with served(shelf, tmp_path) as address, browsing(address) as tab:
        tab.page.set_default_timeout(PATIENT_MS)
        tabs = [tab.page, *(tab.page.context.new_page() for _ in range(7))]
        for one in tabs:
            one.goto(f"{address}/items?state=pending", wait_until="load")
            one.get_by_role("rowheader", name="late").wait_for()
        assert not any(one.evaluate("document.hidden") for one in tabs)
        books(shelf).add(["later"])
        for one in tabs:
            one.get_by_role("rowheader", name="later").wait_for()
        # One that waits for its turn can be left.
        for one in tabs:
            one.goto(f"{address}/items?state=failed", wait_until="load")
            one.get_by_role("rowheader", name="bad-1").wait_for()
        assert tab.problems == []
