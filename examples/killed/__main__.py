"""Forty books go through three stages in a process of their own. It is killed with SIGKILL twice, started again twice,
and at the end a ledger that the handlers kept outside the database is compared with what the store says.

    python -m examples.killed [STORE]

STORE is the address of an empty store; by default a fresh SQLite file in `.demo`. It may come as the variable STORE too.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

from examples.killed.books import BOOKS, STAGES, books
from examples.killed.ledger import Ledger
from holdfast import Holdfast
from holdfast.errors import HoldfastError

HOME = Path(".demo")
#: The worker is killed when this share of all stages is finished.
KILLS = (0.25, 0.6)
LOOK_SECONDS = 0.1
LINE_SECONDS = 0.8

#: A stage of a book: its key, and the stage's name.
Stage = tuple[str, str]


class Demo:
    def __init__(self, url: str) -> None:
        self.url = url
        self.ledger_file = HOME / "ledger.jsonl"
        self.began = time.monotonic()
        self.app = Holdfast(url, [books.spec])
        #: When the worker was killed, and what was finished by then.
        self.kills: list[tuple[float, set[Stage]]] = []

    def run(self) -> bool:
        """The whole show; True if everything was as promised."""
        self.app.add(books.name, [{"key": f"book-{n:02d}", "number": n} for n in range(1, BOOKS + 1)])
        self.say(f"{BOOKS} books, {len(STAGES)} stages each, in {self.app.store.where}")
        for share in KILLS:
            worker = self.start()
            self.watch(worker, until=round(share * BOOKS * len(STAGES)))
            self.kill(worker)
        worker = self.start()
        self.watch(worker)
        if worker.wait() != 0:
            self.say(f"the worker ended with exit code {worker.returncode}")
            return False
        self.say("nothing is left to do, the worker has ended")
        return self.judge()

    def start(self) -> subprocess.Popen[bytes]:
        environment = {**os.environ, "HOLDFAST_URL": self.url, "DEMO_LEDGER": str(self.ledger_file)}
        worker = subprocess.Popen([sys.executable, "-m", "examples.killed.books"], env=environment)
        again = "again: " if self.kills else ""
        self.say(f"{again}started worker, process {worker.pid}")
        return worker

    def watch(self, worker: subprocess.Popen[bytes], until: int | None = None) -> None:
        """Tell how far it is, until so many stages are finished or the worker ends."""
        next_line = 0.0
        while worker.poll() is None:
            finished = self.finished()
            if until is not None and len(finished) >= until:
                return
            if time.monotonic() >= next_line:
                self.say(self.progress())
                next_line = time.monotonic() + LINE_SECONDS
            time.sleep(LOOK_SECONDS)

    def kill(self, worker: subprocess.Popen[bytes]) -> None:
        worker.send_signal(signal.SIGKILL)
        worker.wait()
        finished = self.finished()
        self.kills.append((time.monotonic(), finished))
        running = sum(stage["states"].get("in_progress", 0) for stage in self.stages())
        self.say(f"kill -9 {worker.pid}: {len(finished)} stages are finished, {running} were in its hands")

    def stages(self) -> list[dict[str, Any]]:
        stages: list[dict[str, Any]] = self.app.status()[0]["stages"]
        return stages

    def finished(self) -> set[Stage]:
        """The stages that have a checkpoint."""
        return {
            (row["key"], row["stage"])
            for stage in STAGES for state in ("done", "skipped")
            for row in self.app.items(stage=stage, state=state, most=BOOKS)
        }  # fmt: skip

    def progress(self) -> str:
        parts = []
        for stage in self.stages():
            states = stage["states"]
            passed = states.get("done", 0) + states.get("skipped", 0)
            bar = "#" * round(passed / BOOKS * 10)
            parts.append(f"{stage['name']} [{bar:<10}] {passed:2d}")
        retries = sum(stage["states"].get("retry_later", 0) for stage in self.stages())
        return "   ".join(parts) + (f"   {retries} to be retried" if retries else "")

    def judge(self) -> bool:
        """Compare the ledger with the store, and say what was found."""
        lines = Ledger(self.ledger_file).read()
        starts = Counter((line.key, line.stage) for line in lines if line.what == "start")
        finished = self.finished()
        everything = {(f"book-{n:02d}", stage) for n in range(1, BOOKS + 1) for stage in STAGES}
        repeated = {
            (line.key, line.stage) for at, done in self.kills for line in lines
            if line.what == "start" and line.at > at and (line.key, line.stage) in done
        }  # fmt: skip
        print(f"\nHow often handlers were started, from the ledger they wrote ({self.ledger_file}):\n")
        print("           once  twice  3 times  more often")
        for stage in STAGES:
            times = Counter(min(n, 4) for (_, name), n in starts.items() if name == stage)
            print(f"  {stage:8} {times[1]:4d}  {times[2]:5d}  {times[3]:7d}  {times[4]:10d}")
        print("\n(More than once: it was in the hands of a killed worker, or the fetch had failed and was retried.)\n")
        safe = sum(len(done) for _, done in self.kills)
        facts = [
            (finished == everything, f"{len(finished)} of {len(everything)} stages are finished: every book is done"),
            (set(starts) == everything, "no stage was finished without having been run"),
            (not repeated, f"{safe} times a stage was finished when the worker was killed: {len(repeated)} ran again"),
            (not self.app.check(), "the tables agree with each other and with the counts"),
        ]
        for fact, text in facts:
            print(f"  {'yes' if fact else 'NO '}  {text}")
        return all(fact for fact, _ in facts)

    def say(self, text: str) -> None:
        print(f"{time.monotonic() - self.began:6.1f} s  {text}", flush=True)


def choose_store(given: str | None) -> str:
    """The store that was asked for, or a fresh file. A given one must be unused: nothing of anybody's is removed."""
    shutil.rmtree(HOME, ignore_errors=True)
    HOME.mkdir()
    url = given or f"sqlite:///{HOME}/books.db"
    if url.startswith("postgres") and "schema=" not in url:
        url += f"{'&' if '?' in url else '?'}schema=holdfast_demo_{os.getpid()}"
    with Holdfast(url) as app:
        if any(pipeline["name"] == books.name for pipeline in app.status()):
            raise SystemExit(f"{url} has a pipeline named {books.name!r} already: name an empty store")
    return url


def what_next(url: str) -> str:
    command = Path(sys.executable).with_name("holdfast")
    program = os.path.relpath(command) if command.is_relative_to(Path.cwd()) else str(command)
    shown = re.sub(r"(?<=//)([^/@:]*):[^/@]+@", r"\1:PASSWORD@", url)
    return f"""
What to try next:

  export HOLDFAST_URL='{shown}'
  {program} status
  {program} show book-08
  {program} events
  {program} retry --stage index --key 'book-1*' --state done    # send ten back,
  {program} run examples/killed/books.py                        # and kill this one yourself

How it is done: examples/killed/books.py. What is promised: docs/guarantees.md."""


def main() -> None:
    started = time.monotonic()
    url = choose_store(sys.argv[1] if len(sys.argv) > 1 else os.environ.get("STORE"))
    fine = Demo(url).run()
    print(f"\nIt took {time.monotonic() - started:.1f} seconds and two kills.")
    if not fine:
        raise SystemExit(1)
    print(what_next(url))


if __name__ == "__main__":
    try:
        main()
    except HoldfastError as error:
        raise SystemExit(f"{error}") from None
