"""A newsroom to play on: a local site, a folder with the job file, a store, commands, and real workers.

with scene_on(database, folder, request, pages=12) as scene:
    scene.holdfast("run", scene.file, code=3)          # a command, in this process
    pid = scene.worker()                               # a worker, as a process of its own
    scene.edit("rate: 60/s", "rate: 30/s")             # the job file, saved as an editor would
"""

from __future__ import annotations

import json
import os
import shutil
import signal
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import pytest
import sqlalchemy as sa
from click.testing import CliRunner, Result

from examples.newsroom import __file__ as package
from examples.newsroom.fakes.fake_server import FakeServer
from examples.newsroom.fakes.fake_site import FakeSite
from examples.newsroom.tables import articles, create, engine_of
from holdfast import Holdfast
from holdfast.answers import Events, StageOfItem
from holdfast.cli import commands
from holdfast.model.states import OPEN
from holdfast.store.postgres_address import read_url
from tests.examples.newsroom_workers import the_workers
from tests.support.processes import wait_for
from tests.support.steps import own_tables_beside, quick_url

T = TypeVar("T")

EXAMPLE = Path(package).parent
STAGES = ("fetch", "extract", "analyse", "index")
#: What every worker of a test is told: quick to look, quick to be found dead.
QUICK = ("--poll", "2s", "--lease", "2s", "--grace", "2s")


def soon(fact: Callable[[], T], timeout: float = 30.0) -> T:
    """Return what the fact says once it holds. Asked seldom: each question costs as much as the work it waits for."""
    return wait_for(fact, timeout, every=0.1)


class Scene:
    """A job file in a folder of its own, on a store and a site of its own."""

    def __init__(self, url: str, folder: Path, server: FakeServer) -> None:
        self.url, self.folder, self.server = url, folder, server
        shutil.copytree(EXAMPLE / "desk", folder / "desk")
        shutil.copy(EXAMPLE / "holdfast.yaml", folder)
        self.file = str(folder / "holdfast.yaml")
        self.environment = {
            "HOLDFAST_URL": url,
            "NEWSROOM_SITE": server.url,
            "NEWSROOM_EMBARGO": str(folder / "embargo"),
            "PGOPTIONS": os.environ.get("PGOPTIONS", ""),
        }
        self.said = folder / "said"
        self._pids: list[int] = []
        self._taken = 0

    def begin(self) -> None:
        """Make the tables: holdfast's and the newsroom's."""
        self.app = Holdfast(self.url)
        self.app.upgrade()
        create(self.url)

    def end(self) -> None:
        for pid in list(self._pids):
            self.kill(pid)
        self.app.close()

    # Acting -----------------------------------------------------------------------------------------------------------

    def holdfast(self, *words: str, code: int = 0) -> Result:
        """A command, in this process; its exit code is checked."""
        result = CliRunner().invoke(commands, list(words), prog_name="holdfast")
        assert result.exit_code == code, (words, result.exit_code, result.output, result.exception)
        return result

    def json(self, *words: str, code: int = 0) -> Any:
        return json.loads(self.holdfast(*words, "--json", code=code).stdout)

    def run(self, code: int = 0) -> None:
        """`holdfast run`: look at every source, and work until nothing is left to do."""
        self.holdfast("run", self.file, "--poll", "0.2s", "--grace", "0s", code=code)

    def discover(self, *sources: str) -> dict[str, dict[str, int]]:
        """`holdfast discover`: what became of what each source found."""
        told = {}
        for line in self.holdfast("discover", self.file, *sources).stdout.splitlines():
            name, _, counts = line.removeprefix("newsroom/").partition(": ")
            told[name] = {what: int(n) for n, what in (one.split() for one in counts.split(", "))}
        return told

    def edit(self, old: str, new: str) -> None:
        """Change the job file as an editor does: a new file takes its place."""
        path = Path(self.file)
        text = path.read_text()
        assert text.count(old) == 1, f"{old!r} is {text.count(old)} times in the job file"
        draft = path.with_suffix(".draft")
        draft.write_text(text.replace(old, new))
        draft.replace(path)

    def only(self, *sources: str) -> None:
        """Leave only these sources in the job file; each stands on lines of its own."""
        lines, keep, inside = [], True, False
        for line in Path(self.file).read_text().splitlines(keepends=True):
            depth = len(line) - len(line.lstrip())
            if line.strip() and depth <= 4:
                inside, keep = line.strip() == "sources:", True
            elif inside and depth == 6:
                keep = line.strip().partition(":")[0] in sources
            if not inside or keep or not line.strip():
                lines.append(line)
        Path(self.file).write_text("".join(lines))

    def take(self, n: int) -> list[str]:
        """The addresses of so many articles that no test has had before."""
        odd = {3, 5, 7}
        sound = [one for one in self.server.site.up() if one.number not in odd]
        taken = sound[self._taken : self._taken + n]
        assert len(taken) == n, "the site has too few pages for all of these tests"
        self._taken += n
        return [self.server.url + one.path for one in taken]

    def add(self, keys: list[str]) -> None:
        self.app.add("newsroom", keys)

    # Workers ----------------------------------------------------------------------------------------------------------

    def worker(self, *options: str, environment: Mapping[str, str] | None = None) -> int:
        """A worker, as a process of its own that is among the living; its number."""
        words = ["worker", self.file, *QUICK, *options]
        pid = the_workers().start(words, {**self.environment, **(environment or {})}, self.said, self.folder)
        self._pids.append(pid)
        soon(lambda: any(one.process == str(pid) for one in self.app.workers()))
        return pid

    def kill(self, pid: int) -> int:
        """End a worker with SIGKILL, and wait until it is gone."""
        os.kill(pid, signal.SIGKILL)
        self._pids.remove(pid)
        return the_workers().wait(pid)

    def stop(self, pid: int) -> int:
        """Ask a worker to stop; its exit code."""
        os.kill(pid, signal.SIGTERM)
        self._pids.remove(pid)
        return the_workers().wait(pid)

    def kill_at_work(self, pid: int) -> int:
        """End a worker at a moment at which it holds leases; how many."""

        def held() -> int:
            worker = next((one.id for one in self.app.workers() if one.process == str(pid)), "0")
            return int(self.rows(f"SELECT count(*) FROM {self.table('leases')} WHERE worker = {int(worker, 16)}")[0][0])

        while True:
            wait_for(held, every=0.005)
            os.kill(pid, signal.SIGSTOP)
            # Twice: what it had sent to the database may still take place.
            if held() and (found := held()):
                break
            os.kill(pid, signal.SIGCONT)
        assert self.kill(pid) == -signal.SIGKILL
        return found

    # Looking ----------------------------------------------------------------------------------------------------------

    def table(self, name: str) -> str:
        """A table or a view of holdfast's, as SQL has it."""
        return f"holdfast_{name}" if self.url.startswith("sqlite:") else f"{read_url(self.url)[1]}.{name}"

    def rows(self, statement: str) -> list[tuple[Any, ...]]:
        with engine_of(self.url).connect() as connection:
            return [tuple(row) for row in connection.execute(sa.text(statement))]

    def articles(self) -> dict[str, dict[str, Any]]:
        """Our own table, by key."""
        with engine_of(self.url).connect() as connection:
            return {row.key: dict(row._mapping) for row in connection.execute(articles.select())}

    def stage(self, key: str, stage: str) -> StageOfItem:
        """One stage of an item: state, attempts, error, version, result."""
        return self.app.show(key).stage(stage)

    def states(self, stage: str) -> Mapping[str, int]:
        [pipeline] = self.app.status().pipelines
        return next(one.states for one in pipeline.stages if one.name == stage)

    def events(self, event: str, key: str | None = None) -> Events:
        return self.app.events(event=event, key=key, most=100_000)

    def is_done(self) -> bool:
        """Has every item come to an end?"""
        return not any(OPEN & stage.states.keys() for one in self.app.status().pipelines for stage in one.stages)

    def wait_until_done(self, timeout: float = 60.0) -> None:
        try:
            soon(self.is_done, timeout)
        except AssertionError:
            said = self.said.read_text() if self.said.exists() else ""
            raise AssertionError(f"not done within {timeout:.0f} s: {self.app.status()}\n{said[-4000:]}") from None

    def deliveries(self) -> Counter[str]:
        """How often each page was delivered."""
        return Counter(one.path for one in list(self.server.asked) if one.what == "pages" and one.status == 200)

    def calls(self) -> int:
        """How often the analyst was asked."""
        return sum(one.what == "analyst" for one in list(self.server.asked))


@contextmanager
def scene_on(
    database: str, folder: Path, request: pytest.FixtureRequest, *, pages: int, seed: int = 7
) -> Iterator[Scene]:
    """A scene that ends with the block: server, workers, tables."""
    folder = folder / "newsroom"
    folder.mkdir()
    with (
        quick_url(database, request) as url,
        FakeServer(FakeSite(seed, pages)) as server,
        pytest.MonkeyPatch.context() as patch,
    ):
        scene = Scene(own_tables_beside(url), folder, server)
        for name, value in scene.environment.items():
            patch.setenv(name, value)
        patch.syspath_prepend(str(folder))
        scene.begin()
        try:
            yield scene
        finally:
            scene.end()
