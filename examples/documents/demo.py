"""A library goes through the pipeline in a worker of its own, which is killed with SIGKILL twice and started again twice.

At the end four witnesses are asked: holdfast, our own tables, the ledger of the model that was paid, and the event log.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import sqlalchemy as sa

from examples.documents.fakes.fake_library import BOOK_OF_61, BROKEN_BOOK, write_fake_library
from examples.documents.fakes.fake_model import paid, read_ledger
from examples.documents.pipeline import CONNECTIONS, DOCUMENTS, Documents, keys
from examples.documents.search import search
from examples.documents.settings import Settings
from examples.documents.stages import WORDS, where_is
from examples.documents.tables import chunks, documents, links
from holdfast import Holdfast, store_engine
from holdfast.answers import StageStatus

HOME = Path(".demo")
#: The worker is killed when this share of all stages is finished.
KILLS = (0.2, 0.6)
LOOK_SECONDS = 0.1
LINE_SECONDS = 1.0
#: Heartbeats carry the progress: with the 30 minutes of every day, one would see nothing of it here.
STALE = "4s"
#: What Python is given to serve the dashboard, with the pipelines' code.
DASHBOARD = ("-m", "holdfast", "ui", "examples.documents.jobs")
QUESTION = "bees gathering honey in the orchard"


def demo(store: str | None, books: Path | None, ui: bool = False) -> None:
    """The whole show; it ends with exit code 1 if something is not as promised. With `ui` the dashboard follows."""
    if books is not None and not books.is_dir():
        raise SystemExit(f"{books} is no folder")
    url = _choose_store(store)
    show = _Show(replace(Settings.read(), store=url), books or HOME / "books")
    if books is None:
        show.say(f"wrote {len(write_fake_library(show.books))} documents into {show.books}")
    with show.fake_model():
        is_good = show.process(generated=books is None)
    if not is_good:
        raise SystemExit(1)
    print(_what_next(url), flush=True)
    if ui:
        print("\nThe dashboard, until Ctrl-C:\n", flush=True)
        os.execve(sys.executable, [sys.executable, *DASHBOARD, "--port=0"], {**os.environ, "HOLDFAST_URL": url})


class _Show:
    def __init__(self, settings: Settings, books: Path) -> None:
        self.settings = settings
        self.books = books
        self.ledger = HOME / "calls.jsonl"
        self.began = time.monotonic()
        #: How many calls a script without holdfast would have paid again after the kills: one that begins unfinished books
        #: anew, and one that starts over.
        self.begun_anew = self.started_over = 0

    def say(self, text: str) -> None:
        print(f"{time.monotonic() - self.began:6.1f} s  {text}", flush=True)

    @contextmanager
    def fake_model(self) -> Iterator[None]:
        """The model that wants money, in a process of its own."""
        options = {"ledger": self.ledger, "port": 0, "price": self.settings.price}
        options |= {"first-seconds": 0.3, "page-seconds": 0.012}
        told = (f"--{name}={value}" for name, value in options.items())
        command = [sys.executable, "-m", "examples.documents.fakes.fake_model", *told]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as model:
            assert model.stdout is not None
            url = model.stdout.readline().strip()
            self.settings = replace(self.settings, model_url=url)
            self.say(
                f"a model that wants ${self.settings.price} a book listens at {url}: slow, fails and says 429 at times"
            )
            try:
                yield
            finally:
                model.kill()

    def process(self, *, generated: bool) -> bool:
        application = Documents(self.settings)
        with application.open() as app:
            added = application.add(app, self.books)
            if not added.new:
                raise SystemExit(f"there is no EPUB, PDF or HTML file in {self.books}")
            self.say(f"{added.new} documents, {len(WORDS)} stages each, then connections; in {app.store.where}")
            for share in (*KILLS, None):
                worker = self.start_worker()
                self.watch(app, worker, None if share is None else round(share * added.new * len(WORDS)))
                if share:
                    self.kill(app, worker)
            if worker.wait() not in (0, 1):
                self.say(f"the worker ended with exit code {worker.returncode}")
                return False
            self.say("nothing is left to do, the worker has ended")
            return self.judge(app, generated)

    def start_worker(self) -> subprocess.Popen[bytes]:
        environment = {
            **os.environ,
            "HOLDFAST_URL": self.settings.store,
            "DOCUMENTS_MODEL_URL": self.settings.model_url,
            "DOCUMENTS_STALE": os.environ.get("DOCUMENTS_STALE", STALE),
        }
        command = [sys.executable, "-m", "examples.documents", "run", "--quiet"]
        worker = subprocess.Popen(command, env=environment, stdin=subprocess.DEVNULL)
        self.say(f"started a worker, process {worker.pid}")
        return worker

    def watch(self, app: Holdfast, worker: subprocess.Popen[bytes], until: int | None) -> None:
        """Tell how far it is, until so many stages are finished or the worker ends."""
        next_line = time.monotonic() + 0.5 * LINE_SECONDS
        while worker.poll() is None and (until is None or _count(app, "done") < until):
            if time.monotonic() >= next_line:
                self.say(_progress(app))
                next_line = time.monotonic() + LINE_SECONDS
            time.sleep(LOOK_SECONDS)

    def kill(self, app: Holdfast, worker: subprocess.Popen[bytes]) -> None:
        worker.kill()
        worker.wait()
        charged = paid(read_ledger(self.ledger))
        self.begun_anew += sum(bool(charged[key]) for key in keys(app) if not where_is(app, key).ready)
        self.started_over += len(charged)
        finished, running = _count(app, "done"), _count(app, "in_progress")
        self.say(f"kill -9 {worker.pid}: {finished} stages are finished, {running} were in its hands")

    def judge(self, app: Holdfast, generated: bool) -> bool:
        """Say what there is, and whether it is as promised."""
        found = [where_is(app, key) for key in keys(app)]
        ready, failed = [one for one in found if one.ready], [one for one in found if one.stage == "failed"]
        calls = read_ledger(self.ledger)
        charged, refused = paid(calls), Counter(call["status"] for call in calls)
        twice = sum(n - 1 for n in charged.values())
        price, spent = Decimal(self.settings.price), sum((Decimal(call["charged"]) for call in calls), Decimal(0))
        recorded = app.costs(["pipeline"]).total.costs
        in_doubt = Counter(event.item for event in app.events(event="in_doubt", pipeline=DOCUMENTS, most=100_000))
        with store_engine(self.settings.store).connect() as connection:
            of_61 = connection.scalar(sa.select(sa.func.count()).where(chunks.c.document == BOOK_OF_61))
            all_chunks, all_links = (
                connection.scalar(sa.select(sa.func.count()).select_from(one)) for one in (chunks, links)
            )
        print(f"\n  {len(ready):6d}  documents ready, {len(failed)} failed")
        for one in failed[:5]:
            print(f"          {one.key}: {one.error}")
        print(f"  {all_chunks:6d}  chunks")
        print(f"  {all_links:6d}  connections between chunks")
        print(f"  {charged.total():6d}  paid calls for {len(charged)} documents")
        for key in (key for key, n in charged.items() if n > 1):
            print(f"          the call for {key} was under way when the worker was killed, and was made again")
        print(f"  ${spent:5.2f}  spent; without holdfast, a script that begins unfinished books anew after each kill")
        anew, over = (price * (len(charged) + again) for again in (self.begun_anew, self.started_over))
        print(f"          would have spent ${anew:.2f}, and one that starts over ${over:.2f}")
        print(f"  {refused[500]:6d}  calls failed, {refused[429]} were told to wait; none of these was paid")
        print(f"  {time.monotonic() - self.began:6.1f}  seconds, two kills\n")
        facts = {
            "every document came to its end": len(ready) + len(failed) == len(found),
            "no row refers to a chunk or a document that is not there": not violations(self.settings.store),
            "each document was paid once, and once more only where holdfast says that a call is in doubt": all(
                n <= 1 + in_doubt[key] for key, n in charged.items()
            ),
            f"holdfast counts ${recorded:.2f} for the calls whose answers it has": recorded == spent - price * twice,
            "holdfast's tables agree with each other and with the counts": not app.check(),
        }
        if generated:
            only = f"the only one that failed is {BROKEN_BOOK}, and nothing was paid for it"
            facts |= {
                only: [one.key for one in failed] == [BROKEN_BOOK],
                f"{BOOK_OF_61} has {of_61} chunks": of_61 == 61,
            }
        for text, fact in facts.items():
            print(f"  {'yes' if fact else 'NO '}  {text}")
        if generated:
            print(f'\nSearch for "{QUESTION}":')
            for hit in search(self.settings.store, QUESTION, 3):
                print(
                    f"  {hit.similarity:.2f}  {hit.title}, chunk {hit.chunk_index}: {' '.join(hit.text.split())[:70]}…"
                )
        return all(facts.values())


def _stages(app: Holdfast, pipeline: str) -> tuple[StageStatus, ...]:
    return app.status().pipeline(pipeline).stages


def _count(app: Holdfast, state: str) -> int:
    return sum(stage.states.get(state, 0) for stage in _stages(app, DOCUMENTS))


def _progress(app: Holdfast) -> str:
    """How many documents have passed each stage, and the longest of what is under way: page n of m."""
    total = sum(1 for _ in keys(app))
    done = {one.name: one.states.get("done", 0) for name in (DOCUMENTS, CONNECTIONS) for one in _stages(app, name)}
    bars = [f"{name} [{'#' * round(n / total * 8):<8}] {n:2d}" for name, n in done.items()]
    notes = [note for worker in app.workers() for note in worker.progress]
    note = max(notes, key=lambda note: note.total or 0, default=None)
    return "  ".join([*bars, f"{note.item}: {note.note}"] if note else bars)


def violations(url: str) -> list[tuple[Any, ...]]:
    """Rows that refer to nothing. There are none, ever; looked for without trusting the database."""
    ids = sa.select(chunks.c.id)
    lost = [
        sa.select(chunks.c.id).where(chunks.c.document.not_in(sa.select(documents.c.key))),
        sa.select(links.c.from_chunk).where(links.c.from_chunk.not_in(ids)),
        sa.select(links.c.to_chunk).where(links.c.to_chunk.not_in(ids)),
    ]
    with store_engine(url).connect() as connection:
        return [tuple(row) for one in lost for row in connection.execute(one)]


def _choose_store(given: str | None) -> str:
    """The store that was asked for, or a fresh file. A given one must be unused: nothing of anybody's is removed."""
    shutil.rmtree(HOME, ignore_errors=True)
    HOME.mkdir()
    os.environ.setdefault("HOLDFAST_BLOBS", str(HOME / "documents.db.blobs"))
    url = given or f"sqlite:///{HOME}/documents.db"
    if url.startswith("postgres") and "schema=" not in url:
        # A schema for holdfast's tables, and ours beside them.
        schema = f"holdfast_demo_{os.getpid()}"
        url += f"{'&' if '?' in url else '?'}schema={schema}&options=-csearch_path%3D{schema}"
    with Holdfast(url) as app:
        if any(pipeline.name == DOCUMENTS for pipeline in app.status().pipelines):
            raise SystemExit(f"{url} has a pipeline named {DOCUMENTS!r} already: name an empty store")
    return url


def _what_next(url: str) -> str:
    python = os.path.relpath(sys.executable) if Path(sys.executable).is_relative_to(Path.cwd()) else sys.executable
    shown = re.sub(r"(?<=//)([^/@:]*):[^/@]+@", r"\1:PASSWORD@", url)
    return f"""
What to try next:

  export HOLDFAST_URL='{shown}'
  {python} -m examples.documents search "fog at the harbour mouth"
  {python} -m examples.documents status
  {python} -m holdfast show {BOOK_OF_61} --pipeline documents
  {python} -m holdfast costs --by item
  {python} {" ".join(DASHBOARD)}      # all of it in a browser
  make demo BOOKS=/a/folder/of/your/own

How it is done: examples/documents/README.md. What is promised: docs/guarantees.md."""
