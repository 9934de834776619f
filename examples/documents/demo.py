"""A library goes through the pipeline in a worker of its own, which is killed with SIGKILL twice and started again twice.

At the end four witnesses are asked: holdfast, our own tables, the ledger of the model that was paid, and the event log.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Any

from examples.documents.library import BOOK_OF_61, BROKEN_BOOK, write_library
from examples.documents.paid_model import paid, read_ledger
from examples.documents.pipeline import DOCUMENTS, Documents, keys
from examples.documents.search import search
from examples.documents.settings import Settings
from examples.documents.stages import WORDS, where_is
from examples.documents.summary import Summary, summarise
from holdfast import Holdfast

HOME = Path(".demo")
#: The worker is killed when this share of all stages is finished.
KILLS = (0.2, 0.6)
LOOK_SECONDS = 0.1
#: Heartbeats carry the progress: with the 30 minutes of every day, one would see nothing of it here.
STALE = "4s"
LINE_SECONDS = 1.0
QUESTION = "bees gathering honey in the orchard"


class Demo:
    def __init__(self, settings: Settings, books: Path | None, home: Path = HOME) -> None:
        self.settings = settings
        self.home = home
        self.ledger = home / "calls.jsonl"
        self.generated = books is None
        self.books = books or home / "books"
        self.began = time.monotonic()
        #: Whose extraction was paid, and that were not ready, when the worker was killed: what a script that begins
        #: unfinished books anew would have paid again.
        self.paid_again: list[str] = []
        #: How many books were paid by then: what a script that starts over would have paid again.
        self.lost = 0

    def run(self) -> bool:
        """The whole show; True if everything was as promised."""
        if self.generated:
            self.say(f"wrote {len(write_library(self.books))} documents into {self.books}")
        model = self.start_model()
        try:
            return self.process()
        finally:
            model.kill()
            model.wait()

    def process(self) -> bool:
        application = Documents(self.settings)
        with application.open() as app:
            added = application.add(app, self.books)
            if not added.new:
                raise SystemExit(f"there is no EPUB, PDF or HTML file in {self.books}")
            stages = added.new * len(WORDS)
            self.say(f"{added.new} documents, {len(WORDS)} stages each, then connections; in {app.store.where}")
            for number, share in enumerate(KILLS):
                worker = self.start_worker(again=number > 0)
                self.watch(app, worker, until=round(share * stages))
                self.kill(app, worker)
            worker = self.start_worker(again=True)
            self.watch(app, worker)
            if worker.wait() not in (0, 1):
                self.say(f"the worker ended with exit code {worker.returncode}")
                return False
            self.say("nothing is left to do, the worker has ended")
            return self.judge(summarise(app, self.settings.store, self.ledger))

    # Processes --------------------------------------------------------------------------------------------------------

    def start_model(self) -> subprocess.Popen[str]:
        command = [
            sys.executable, "-m", "examples.documents.paid_model", "--ledger", str(self.ledger), "--port", "0", "--price",
            self.settings.price, "--key", self.settings.model_key, "--first-seconds", "0.3", "--page-seconds", "0.012",
        ]  # fmt: skip
        model = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert model.stdout is not None
        url = model.stdout.readline().strip()
        self.settings = replace(self.settings, model_url=url)
        self.say(f"a model that wants ${self.settings.price} a book listens at {url}: slow, fails at times, says 429 at times")
        return model

    def start_worker(self, *, again: bool) -> subprocess.Popen[bytes]:
        environment = {
            **os.environ, "HOLDFAST_URL": self.settings.store, "DOCUMENTS_MODEL_URL": self.settings.model_url,
            "DOCUMENTS_MODEL_KEY": self.settings.model_key, "DOCUMENTS_PRICE": self.settings.price,
            "DOCUMENTS_STALE": os.environ.get("DOCUMENTS_STALE", STALE),
        }  # fmt: skip
        worker = subprocess.Popen(
            [sys.executable, "-m", "examples.documents", "run", "--quiet"], env=environment, stdin=subprocess.DEVNULL
        )
        self.say(f"{'again: ' if again else ''}started worker, process {worker.pid}")
        return worker

    def watch(self, app: Holdfast, worker: subprocess.Popen[bytes], until: int | None = None) -> None:
        """Tell how far it is, until so many stages are finished or the worker ends."""
        next_line = time.monotonic() + 0.5 * LINE_SECONDS
        while worker.poll() is None:
            if until is not None and self.finished(app) >= until:
                return
            if time.monotonic() >= next_line:
                self.say(self.progress(app))
                next_line = time.monotonic() + LINE_SECONDS
            time.sleep(LOOK_SECONDS)

    def kill(self, app: Holdfast, worker: subprocess.Popen[bytes]) -> None:
        worker.send_signal(signal.SIGKILL)
        worker.wait()
        open_books = [key for key in keys(app) if not where_is(app, key).ready]
        charged = paid(read_ledger(self.ledger))
        self.paid_again += [key for key in open_books if charged[key]]
        self.lost += len(charged)
        running = sum(stage["states"].get("in_progress", 0) for stage in self.stages(app))
        self.say(f"kill -9 {worker.pid}: {self.finished(app)} stages are finished, {running} were in its hands")

    # What is told -----------------------------------------------------------------------------------------------------

    def stages(self, app: Holdfast) -> list[dict[str, Any]]:
        stages: list[dict[str, Any]] = next(one["stages"] for one in app.status() if one["name"] == DOCUMENTS)
        return stages

    def finished(self, app: Holdfast) -> int:
        return sum(stage["states"].get("done", 0) for stage in self.stages(app))

    def progress(self, app: Holdfast) -> str:
        parts = []
        rows = {one["name"]: one["stages"] for one in app.status()}
        total = sum(1 for _ in keys(app))
        for stage in [*rows[DOCUMENTS], *rows["connections"]]:
            done = stage["states"].get("done", 0)
            parts.append(f"{stage['name']} [{'#' * round(done / total * 8):<8}] {done:2d}")
        return "  ".join(parts) + self.pages(app)

    def pages(self, app: Holdfast) -> str:
        """The longest of what is under way: page n of m."""
        notes = [note for worker in app.workers() for note in worker.get("progress", ())]
        note = max(notes, key=lambda note: note["total"] or 0, default=None)
        return f"  {note['item']}: {note['note']}" if note else ""

    def judge(self, found: Summary) -> bool:
        """Say what there is, and whether it is as promised."""
        open_ones = len(found.documents) - len(found.ready) - len(found.failed)
        price, books = Decimal(self.settings.price), len(found.paid)
        begun_anew, started_over = price * (books + len(self.paid_again)), price * (books + self.lost)
        print(f"\n  {len(found.ready):6d}  documents ready, {len(found.failed)} failed" + _why(found))
        print(f"  {found.chunks.total():6d}  chunks")
        print(f"  {found.connections:6d}  connections between chunks")
        print(f"  {found.paid.total():6d}  paid calls for {books} documents" + _twice(found))
        print(f"  ${found.spent:5.2f}  spent; without holdfast, a script that begins unfinished books anew after each kill")
        print(f"          would have spent ${begun_anew:.2f}, and one that starts over ${started_over:.2f}")
        print(f"  {found.refused[500]:6d}  calls failed, {found.refused[429]} were told to wait; none of these was paid")
        print(f"  {time.monotonic() - self.began:6.1f}  seconds, two kills\n")
        once = all(n <= 1 + found.in_doubt[key] for key, n in found.paid.items())
        known = found.spent - price * found.twice
        facts = [
            (not open_ones, "every document came to its end"),
            (not found.violations, "no row refers to a chunk or a document that is not there"),
            (once, "each document was paid once, and once more only where holdfast says that a call is in doubt"),
            (known == found.recorded, f"holdfast counts ${found.recorded:.2f} for the calls whose answers it has"),
            (not found.wrong, "holdfast's tables agree with each other and with the counts"),
        ]  # fmt: skip
        if self.generated:
            failed = [one.key for one in found.failed]
            facts += [
                (failed == [BROKEN_BOOK], f"the only one that failed is {BROKEN_BOOK}, and nothing was paid for it"),
                (found.chunks[BOOK_OF_61] == 61, f"{BOOK_OF_61} has {found.chunks[BOOK_OF_61]} chunks"),
            ]
        for fact, text in facts:
            print(f"  {'yes' if fact else 'NO '}  {text}")
        if self.generated:
            print(f'\nSearch for "{QUESTION}":')
            for hit in search(self.settings.store, QUESTION, 3):
                print(f"  {hit.similarity:.2f}  {hit.title}, chunk {hit.chunk_index}: {' '.join(hit.text.split())[:70]}…")
        return all(fact for fact, _ in facts)

    def say(self, text: str) -> None:
        print(f"{time.monotonic() - self.began:6.1f} s  {text}", flush=True)


def _why(found: Summary) -> str:
    return "".join(f"\n          {one.key}: {one.error}" for one in found.failed[:5])


def _twice(found: Summary) -> str:
    if not found.twice:
        return ""
    which = ", ".join(key for key, n in found.paid.items() if n > 1)
    calls = "1 call was" if found.twice == 1 else f"{found.twice} calls were"
    return f"\n          {calls} under way when the worker was killed, and made again: {which}"


def choose_store(given: str | None) -> str:
    """The store that was asked for, or a fresh file. A given one must be unused: nothing of anybody's is removed."""
    shutil.rmtree(HOME, ignore_errors=True)
    HOME.mkdir()
    url = given or f"sqlite:///{HOME}/documents.db"
    if url.startswith("postgres") and "schema=" not in url:
        url += f"{'&' if '?' in url else '?'}schema=holdfast_demo_{os.getpid()}"
    with Holdfast(url) as app:
        if any(pipeline["name"] == DOCUMENTS for pipeline in app.status()):
            raise SystemExit(f"{url} has a pipeline named {DOCUMENTS!r} already: name an empty store")
    return url


def what_next(url: str) -> str:
    python = os.path.relpath(sys.executable) if Path(sys.executable).is_relative_to(Path.cwd()) else sys.executable
    shown = re.sub(r"(?<=//)([^/@:]*):[^/@]+@", r"\1:PASSWORD@", url)
    return f"""
What to try next:

  export HOLDFAST_URL='{shown}'
  {python} -m examples.documents search "fog at the harbour mouth"
  {python} -m examples.documents status
  {python} -m holdfast show {BOOK_OF_61} --pipeline documents
  {python} -m holdfast costs --by item
  make demo BOOKS=/a/folder/of/your/own

How it is done: examples/documents/README.md. What is promised: docs/guarantees.md."""


def demo(store: str | None, books: Path | None) -> None:
    if books is not None and not books.is_dir():
        raise SystemExit(f"{books} is no folder")
    url = choose_store(store)
    settings = replace(Settings.read(), store=url)
    if not Demo(settings, books).run():
        raise SystemExit(1)
    print(what_next(url))
