"""The show: the job is killed while it works, run again, and every article is analysed and paid once.

All of it is done by the commands of the README, each in a process of its own.
"""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from holdfast import Holdfast

HERE = Path(__file__).resolve().parent
PIPELINE = "newsroom"
#: The run is killed when so many attempts of its stages are finished.
KILLED_AT = 80
#: Longer than any run of it.
PATIENCE_SECONDS = 120.0
#: The exit code of a run after which some items have not made it: two pages of the site are broken.
SOME_FAILED = 3


def demo() -> None:
    """The whole show, in a folder that goes with it; exits with 1 if something is not as promised."""
    with tempfile.TemporaryDirectory(prefix="newsroom-") as name:
        folder = Path(name)
        shutil.copy(HERE / "holdfast.yaml", folder)
        shutil.copytree(HERE / "desk", folder / "desk")
        environment = {"HOLDFAST_URL": f"sqlite:///{folder}/holdfast.db", **os.environ}
        with _site(folder, environment) as url:
            Demo(folder, {**environment, "NEWSROOM_SITE": url}).run()


class Demo:
    def __init__(self, folder: Path, environment: Mapping[str, str]) -> None:
        self._folder, self._environment = folder, environment
        self._store = environment["HOLDFAST_URL"]

    def run(self) -> None:
        with Holdfast(self._store) as app:
            if any(pipeline.name == PIPELINE for pipeline in app.status().pipelines):
                raise SystemExit(f"the store has a pipeline named {PIPELINE!r} already: name an empty one")
            self.type("python -m examples.newsroom tables")
            self.type("holdfast discover holdfast.yaml")
            self.kill_a_run(app)
            self.type("holdfast run holdfast.yaml", code=SOME_FAILED)
            self.type("holdfast costs --by stage")
            self.type('python -m examples.newsroom search "ferry in the fog" --most 2')
            self.judge(app)

    def kill_a_run(self, app: Holdfast) -> None:
        print("$ holdfast run holdfast.yaml", flush=True)
        words, nobody = _command("holdfast run holdfast.yaml"), subprocess.DEVNULL
        with subprocess.Popen(words, cwd=self._folder, env=self._environment, stdout=nobody, stderr=nobody) as victim:
            give_up_at = time.monotonic() + PATIENCE_SECONDS
            while (done := _finished(app)) < KILLED_AT and victim.poll() is None and time.monotonic() < give_up_at:
                time.sleep(0.05)
            victim.kill()
        print(f"kill -9 {victim.pid}: {done} stages of articles were finished\n", flush=True)

    def type(self, line: str, *, code: int = 0) -> None:
        """Show a command, and what it prints."""
        print(f"$ {line}", flush=True)
        done = subprocess.run(_command(line), cwd=self._folder, env=self._environment, check=False)
        if done.returncode != code:
            raise SystemExit(f"it ended with {done.returncode}")
        print(flush=True)

    def judge(self, app: Holdfast) -> None:
        """Say whether it is as promised."""
        states = {stage.name: stage.states for stage in app.status().pipeline(PIPELINE).stages}
        ends = {"done", "skipped", "failed", "exhausted"}
        analysed = states["analyse"]["done"]
        paid = sum(row.payments for row in app.costs(["stage"]).sums)
        doubts = len(app.events(event="in_doubt"))
        facts = [
            (all(found.keys() <= ends for found in states.values()), "every article came to its end"),
            (paid == analysed, f"{analysed} articles were analysed, and {paid} payments made"),
        ]
        for fact, text in facts:
            print(f"  {'yes' if fact else 'NO '}  {text}")
        print(f"       calls that the kill had left in doubt, made again with their idempotency keys: {doubts}")
        if not all(fact for fact, _ in facts):
            raise SystemExit(1)


@contextmanager
def _site(folder: Path, environment: Mapping[str, str]) -> Iterator[str]:
    """The site and the analyst, on a free port; where they are."""
    words = _command("python -m examples.newsroom serve --port 0 --pages 60")
    with subprocess.Popen(words, cwd=folder, env=environment, stdout=subprocess.PIPE, text=True) as site:
        try:
            assert site.stdout is not None
            said = site.stdout.readline()
            print(said, flush=True)
            yield said.split()[-1]
        finally:
            site.terminate()


def _finished(app: Holdfast) -> int:
    return sum(stage.states.get("done", 0) for stage in app.status().pipeline(PIPELINE).stages)


def _command(line: str) -> list[str]:
    """A line as it is typed, by the Python that runs this."""
    program, *words = shlex.split(line)
    return [sys.executable, *(["-m", "holdfast"] if program == "holdfast" else []), *words]
