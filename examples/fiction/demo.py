"""The show: a weaver is killed while it writes, another one goes on, and every text is there once.

All of it is done by the commands of the README, each in a process of its own.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from contextlib import ExitStack

from examples.fiction.database import Database
from examples.fiction.settings import Settings
from examples.fiction.status import status

#: Quicker than a storyteller is, so that it can be watched.
HASTE = {"FICTION_PACE": "0.1s", "FICTION_STALE": "3s", "FICTION_POLL": "0.1s", "FICTION_RETRY": "0.2s"}
#: Longer than any run of it.
PATIENCE_SECONDS = 120.0


def demo() -> None:
    with ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="fiction-"))
        environment = {"FICTION_URL": f"sqlite:///{folder}/fiction.db", **os.environ, **HASTE}
        database = Settings.read(environment).open()
        stack.callback(database.close)
        database.create()
        Demo(environment, database, stack).run()


class Demo:
    """What it starts ends with the stack."""

    def __init__(self, environment: Mapping[str, str], database: Database, stack: ExitStack) -> None:
        self._environment, self._database, self._stack = environment, database, stack

    def run(self) -> None:
        if status(self._database)["plans"]:
            raise SystemExit(f"{self._environment['FICTION_URL']}: there are plans already; name an empty database")
        print(self.answer("plan", "The Lamp Road", "--chapters", "1"), end="")
        running = [self.start("scheduler", "--drain")]
        victim = self.start("weaver", FICTION_PACE="1h")
        title = self.wait_until_one_is_written()
        victim.kill()
        victim.wait()
        print(
            f"kill -9 {victim.pid}: a weaver that was writing the {title}; it comes back after 3 s of silence",
            flush=True,
        )
        running += [self.start(role, "--drain") for role in ("weaver", "fulfiller")]
        if any(codes := [one.wait(PATIENCE_SECONDS) for one in running]):
            raise SystemExit(f"a process ended with {codes}")
        self.judge()

    def judge(self) -> None:
        """Say what there is, and whether it is as it should be."""
        print(f"\n{self.answer('show')}")
        found = status(self._database)
        items, counted = found["plans"][0]["items"], found["counters"]
        resumed, woven = counted["scheduler"].get("resumed", 0), counted["weaver"].get("woven", 0)
        facts = [
            (all(one["status"] == "Complete" for one in items), "every item is written"),
            (resumed >= 1, "the item of the killed weaver was resumed"),
            (woven == len(items), f"{woven} texts were saved for {len(items)} items"),
        ]
        for fact, text in facts:
            print(f"  {'yes' if fact else 'NO '}  {text}")
        if not all(fact for fact, _ in facts):
            raise SystemExit(1)

    def wait_until_one_is_written(self) -> str:
        """The name of the item that a weaver has in hand."""
        give_up_at = time.monotonic() + PATIENCE_SECONDS
        while time.monotonic() < give_up_at:
            for item in status(self._database)["plans"][0]["items"]:
                if item["task"] == "InProgress":
                    return str(item["backlog_id"])
            time.sleep(0.05)
        raise SystemExit("no weaver has begun to write; is the database writable?")

    def answer(self, *words: str) -> str:
        """What a command prints."""
        done = subprocess.run(_command(*words), env=self._environment, stdout=subprocess.PIPE, text=True, check=True)
        return done.stdout

    def start(self, *words: str, **variables: str) -> subprocess.Popen[bytes]:
        """A process that says in its log what it does."""
        environment = {**self._environment, **variables}
        process = subprocess.Popen(_command(*words), env=environment, stdout=subprocess.DEVNULL)
        self._stack.callback(process.wait)
        self._stack.callback(process.kill)
        return process


def _command(*words: str) -> list[str]:
    return [sys.executable, "-m", "examples.fiction", *words]
