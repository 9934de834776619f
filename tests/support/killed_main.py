"""One piece of work in a process that is killed where HOLDFAST_CRASH_AT says, or that ends by itself.

ended, errors = killed("prune", url, at="commit.before")
"""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

from holdfast.app import Holdfast
from holdfast.legacy.importing import import_legacy
from holdfast.legacy.mapping import Mapped
from holdfast.legacy.open_database import open_old
from holdfast.model.stage import PipelineSpec, StageSpec
from holdfast.store import open_store
from holdfast.store.driver import Row
from holdfast.store.statements import Statement
from holdfast.testing import CRASH_VARIABLE, crash_from_environment
from tests.sources.finder import Finder
from tests.support.harness import App, handler
from tests.support.mother import Piped

STUCK_SECONDS = 60.0


def killed(work: str, *arguments: str, at: str = "") -> tuple[int, str]:
    """How the process ended, and what it said of errors."""
    process = Piped("tests.support.killed_main", [work, *arguments], {**os.environ, CRASH_VARIABLE: at})
    _, errors = process.communicate(timeout=STUCK_SECONDS)
    return process.wait(), errors


def prune(url: str) -> None:
    """Forget every item that has ended."""
    crash_from_environment()
    with Holdfast(url) as app:
        app.prune(items_older_than=0)


def import_(url: str, old: str, shape: str) -> None:
    """Import an old database as the pipeline `books`, whose stages come with those they follow."""
    stages = [StageSpec(stage, handler, after=tuple(before)) for stage, before in json.loads(shape).items()]
    crash_from_environment()
    with open_old(old) as database:
        pipelines = {"books": PipelineSpec.build("books", stages)}
        import_legacy(open_store(url), database, Mapped.read({"shape": "stages-json"}), pipelines, most=50)


def look(url: str, folder: str, source: str) -> None:
    """Look into a source once, three things at a time."""
    app = App(open_store(url), None)
    find = Finder(app, Path(folder), batch=3)
    find.discoverer = find.discoverer_of({"s": json.loads(source)})
    find.discoverer.register()
    app.worker("w")
    crash_from_environment()
    find.discoverer.one_pass()


def upgrade(url: str, nth: str) -> None:
    """Bring the tables up to date, and be killed before the nth statement, or before the commit for 0. If there are fewer
    statements, be killed right after the commit, and say so."""
    app = Holdfast(url)
    driver = app._store.connect()
    run, commit, left = driver.run, driver.commit, int(nth)

    def counted(statement: Statement, params: dict[str, Any]) -> list[Row]:
        nonlocal left
        left -= 1
        if left == 0:
            _die()
        return run(statement, params)

    def committed() -> None:
        if not int(nth):
            _die()
        commit()
        print("committed", file=sys.stderr, flush=True)
        _die()

    driver.run, driver.commit = counted, committed  # type: ignore[method-assign]
    app.upgrade()


def _die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


WORK = {"prune": prune, "import": import_, "look": look, "upgrade": upgrade}


def main() -> None:
    WORK[sys.argv[1]](*sys.argv[2:])
