"""A real Chromium on a real server: Debian's package, from `make system-deps`. Tests are skipped, and say so, without it."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest

from tests.support.mother import ROOT
from tests.support.waiting import wait_for

STUCK_SECONDS = 120.0
TOKEN = "a-token-for-the-browser-tests"


def chromium() -> str:
    """The browser's program."""
    found = shutil.which("chromium")
    if found is None:
        pytest.skip("there is no chromium: `make system-deps` installs it")
    return found


@contextmanager
def served(url: str, folder: Path, *options: str, port: int | None = None) -> Iterator[str]:
    """`holdfast ui` as an operator starts and stops it; its address, without the token."""
    if port is None:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
    command = [sys.executable, "-m", "holdfast", "ui", "--store", url, "--port", str(port), "--token", TOKEN, *options]
    with (folder / "ui.log").open("wb") as said:
        environment = {**os.environ, "PYTHONPATH": str(ROOT)}
        process = subprocess.Popen(command, cwd=folder, env=environment, stdout=said, stderr=said)
    (folder / "ui.pid").write_text(str(process.pid))
    address = f"http://127.0.0.1:{port}"

    def answers() -> bool:
        assert process.poll() is None, (folder / "ui.log").read_text()
        try:
            return httpx.get(f"{address}/static/icon.svg", timeout=STUCK_SECONDS).status_code == 200
        except httpx.ConnectError:
            return False

    try:
        wait_for(answers, STUCK_SECONDS)
        yield address
        process.terminate()
        process.wait(STUCK_SECONDS)
    finally:
        process.kill()


@dataclass
class Tab:
    """A tab, and what went wrong in it."""

    page: Any
    address: str
    problems: list[str] = field(default_factory=list)
    #: Requests to anything but the server.
    outside: list[str] = field(default_factory=list)

    def go(self, path: str) -> None:
        self.page.goto(f"{self.address}{path}", wait_until="load")

    def watch(self) -> None:
        self.page.on("console", lambda said: self.problems.append(said.text) if said.type == "error" else None)
        self.page.on("pageerror", lambda error: self.problems.append(str(error)))
        self.page.on("request", self._note)

    def _note(self, request: Any) -> None:
        if urlsplit(request.url).netloc != urlsplit(self.address).netloc:
            self.outside.append(request.url)

    def assert_well(self) -> None:
        """Nothing was written to the console, nothing left the machine, and axe-core finds nothing."""
        from axe_playwright_python.sync_playwright import Axe

        assert self.problems == []
        assert self.outside == []
        found = Axe().run(self.page).response["violations"]
        assert [(one["id"], one["impact"], one["nodes"][0]["html"]) for one in found] == []


@contextmanager
def browsing(address: str, **context: Any) -> Iterator[Tab]:
    """A tab that has entered with the token. No address but the server's can be reached."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=chromium(),
            args=["--no-sandbox", "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1"],
        )
        tabs = browser.new_context(**context)
        tabs.set_default_timeout(STUCK_SECONDS * 1000)
        page = tabs.new_page()
        tab = Tab(page, address)
        tab.watch()
        tab.go(f"/?token={TOKEN}")
        yield tab
        browser.close()
