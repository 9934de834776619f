"""Takes the pictures of the documentation: `make screenshots`.

The program of examples/documents reads a small library with a paid model, in three workers. One of them is killed in the middle
of a long book. While the others go on, a browser looks at the dashboard. Everything on the pictures was done by that program;
each run shows something slightly different. Needs Debian's chromium (`make system-deps`) and three minutes.
"""

from __future__ import annotations

import io
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal
from urllib.parse import urlencode

from rich.console import Console
from rich.terminal_theme import MONOKAI
from rich.text import Text

from examples.documents.fakes.fake_library import LONG_BOOK
from examples.documents.pipeline import DOCUMENTS
from holdfast import Holdfast
from tools.small_png import small_png

if TYPE_CHECKING:
    from playwright.sync_api import ViewportSize

ROOT = Path(__file__).resolve().parent.parent
PICTURES = ROOT / "docs" / "pictures"
JOBS = str(ROOT / "examples" / "documents" / "jobs.py")
STUCK_SECONDS = 600.0
LOOK_SECONDS = 0.2
SMALL_BOOKS, LONG_PAGES = 48, 400
WORKERS = 3
#: Seconds for a page: the long book takes a minute and a half.
PACE = {"first-seconds": 0.6, "page-seconds": 0.25}
#: Of the terminal on the picture.
COLUMNS, LINES = 100, 32
WIDTH, TALLEST = 1280, 960
PHONE: ViewportSize = {"width": 375, "height": 720}
SCHEMES: tuple[Literal["light", "dark"], ...] = ("light", "dark")
#: By the name of the picture; in this order, since what is running is shown first.
PAGES = {
    "overview": "",
    "item": f"item?{urlencode({'pipeline': DOCUMENTS, 'key': LONG_BOOK})}",
    "matrix": f"matrix?{urlencode({'pipeline': DOCUMENTS})}",
    "errors": "errors",
    "costs": "costs",
    "throughput": f"throughput?{urlencode({'pipeline': DOCUMENTS, 'stage': 'extract'})}",
}


def main() -> None:
    chromium = shutil.which("chromium")
    if chromium is None:
        raise SystemExit("no pictures were taken, since there is no chromium: `make system-deps` installs it")
    PICTURES.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as folder, ExitStack() as ends:
        scene = Scene(Path(folder), ends)
        scene.begin()
        address = scene.serve()
        take_pictures(chromium, address)
        picture_of_top(scene.run("holdfast", "top", "--once", COLUMNS=str(COLUMNS), LINES=str(LINES)))
    for one in sorted(PICTURES.iterdir()):
        print(f"{one.stat().st_size / 1000:7.1f} kB  {one.relative_to(ROOT)}")


@dataclass
class Scene:
    """A store in which work is going on. What was started is ended by `ends`."""

    folder: Path
    ends: ExitStack
    workers: dict[int, subprocess.Popen[str]] = field(default_factory=dict)
    model_url: str = ""

    @property
    def url(self) -> str:
        return f"sqlite:///{self.folder}/documents.db"

    def begin(self) -> None:
        """Ends when a worker was killed over the long book, and another one is reading it again."""
        books = ["--small", str(SMALL_BOOKS), "--long", str(LONG_PAGES)]
        self.run("examples.documents", "library", "books", *books)
        self.spoil_books()
        pace = (f"--{name}={value}" for name, value in PACE.items())
        self.model = self.process("examples.documents.fakes.fake_model", "--port=0", *pace, stdout=subprocess.PIPE)
        self.model_url = _first_line(self.model)
        print(self.run("examples.documents", "add", "books").strip(), flush=True)
        self.run("holdfast", "tune", DOCUMENTS, "model.budget_per_day=40", "--reason", "a trial run")
        for n in range(WORKERS):
            self.start_worker(f"reader-{n + 1}")
        with Holdfast(self.url, create=False) as app:
            self.kill(_await("the long book is being read", lambda: _reader(app, 0)))
            self.start_worker(f"reader-{WORKERS + 1}")
            _await("it is being read again", lambda: _reader(app, LONG_PAGES // 8))
            _await("the minutes are written", lambda: _written(app))
        # However long the pictures take, the workers have something in hand.
        self.model.send_signal(signal.SIGSTOP)

    def spoil_books(self) -> None:
        """More files that cannot be read, each in a way of its own."""
        books = self.folder / "books"
        (books / "atlas.pdf").write_bytes((books / "bridges.pdf").read_bytes()[:400])
        (books / "blank.html").write_text("<html><body></body></html>")
        (books / "empty.epub").touch()

    def serve(self) -> str:
        """The address of a dashboard on it, with its token."""
        return _first_line(self.process("holdfast", "ui", JOBS, "--port=0", stdout=subprocess.PIPE))

    def start_worker(self, name: str) -> None:
        process = self.process("holdfast", "worker", JOBS, "--name", name, "--lease=4s", "--concurrency=4")
        self.workers[process.pid] = process

    def kill(self, pid: int) -> None:
        print(f"kill -9 {pid}", flush=True)
        self.workers[pid].kill()
        self.workers[pid].wait()

    def run(self, module: str, *arguments: str, **more: str) -> str:
        """What a command prints."""
        command, environment = [sys.executable, "-m", module, *arguments], self.environment | more
        return subprocess.run(
            command, cwd=self.folder, env=environment, stdout=subprocess.PIPE, text=True, check=True
        ).stdout

    def process(self, module: str, *arguments: str, **files: Any) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", module, *arguments]
        process = subprocess.Popen(
            command, cwd=self.folder, env=self.environment, text=True, stdin=subprocess.DEVNULL, **files
        )
        self.ends.callback(_end, process)
        return process

    @property
    def environment(self) -> dict[str, str]:
        given = {
            # All of it is run in the folder; the path of this machine is not to be seen.
            "HOLDFAST_URL": "sqlite:///documents.db",
            "HOLDFAST_BLOBS": str(self.folder / "blobs"),
            "DOCUMENTS_MODEL_URL": self.model_url,
            "DOCUMENTS_CALLS_AT_ONCE": "4",
            "DOCUMENTS_CALL_TIMEOUT": "1h",
            "PYTHONPATH": str(ROOT),
            # Who acts, on the pictures.
            "LOGNAME": "ada",
            "FORCE_COLOR": "1",
        }
        return {**os.environ, **{name: value for name, value in given.items() if value}}


def _first_line(server: subprocess.Popen[str]) -> str:
    """What a server prints first, which is its address."""
    assert server.stdout is not None
    return server.stdout.readline().strip()


def _written(app: Holdfast) -> bool:
    """Whether workers have written what they did: they do so every 20 seconds."""
    return any(one.attempts > SMALL_BOOKS // 3 for one in app.throughput(DOCUMENTS, stage="extract", last="1h"))


def _end(process: subprocess.Popen[str]) -> None:
    process.send_signal(signal.SIGKILL)
    process.wait()


def _reader(app: Holdfast, page: int) -> int | None:
    """The process that has read the long book beyond this page."""
    lease = app.show(LONG_BOOK, DOCUMENTS).stage("extract").lease
    note = None if lease is None else lease.progress
    is_far = note is not None and "page" in note.note and note.done > page
    return int(lease.process) if lease is not None and lease.process and is_far else None


def _await(what: str, fact: Callable[[], Any]) -> Any:
    give_up_at = time.monotonic() + STUCK_SECONDS
    while not (found := fact()):
        if time.monotonic() > give_up_at:
            raise SystemExit(f"waited {STUCK_SECONDS:.0f} s in vain until {what}")
        time.sleep(LOOK_SECONDS)
    print(what, flush=True)
    return found


def take_pictures(chromium: str, address: str) -> None:
    from playwright.sync_api import sync_playwright

    root = address.partition("?")[0]
    with sync_playwright() as playwright:
        # Grey edges of letters instead of coloured ones: fewer colours.
        arguments = ["--no-sandbox", "--force-device-scale-factor=1", "--disable-lcd-text", "--hide-scrollbars"]
        browser: Any = playwright.chromium.launch(executable_path=chromium, args=arguments)
        desk = browser.new_page()
        for name, path in PAGES.items():
            for scheme in SCHEMES:
                tab = browser.new_context(color_scheme=scheme, viewport={"width": WIDTH, "height": 400}).new_page()
                tab.goto(address)
                _open(tab, root + path)
                height = min(TALLEST, tab.evaluate("document.documentElement.scrollHeight"))
                tab.set_viewport_size({"width": WIDTH, "height": height})
                _save(f"{name}-{scheme}", small_png(desk, tab.screenshot()))
                tab.close()
        tab = browser.new_context(viewport=PHONE, color_scheme="dark").new_page()
        tab.goto(address)
        _save("phone-dark", small_png(desk, tab.screenshot()))
        tab.get_by_text("Menu").click()
        _save("phone-menu-dark", small_png(desk, tab.screenshot()))
        browser.close()


def _open(tab: Any, address: str) -> None:
    tab.goto(address)
    # The matrix is counted in the background first.
    tab.locator("progress[aria-label=Counted]").wait_for(state="detached")


def _save(name: str, content: bytes) -> None:
    (PICTURES / f"{name}.png").write_bytes(content)


def picture_of_top(printed: str) -> None:
    """A frame of a terminal as SVG, without the fonts that it would load from elsewhere."""
    console = Console(record=True, width=COLUMNS, file=io.StringIO())
    console.print(Text.from_ansi(printed))
    drawn = console.export_svg(title="holdfast top", theme=MONOKAI)
    drawn = re.sub(r"@font-face \{.*?\}\s*|<!--.*?-->\s*", "", drawn, flags=re.DOTALL)
    (PICTURES / "top.svg").write_text(drawn, encoding="utf-8")


if __name__ == "__main__":
    main()
