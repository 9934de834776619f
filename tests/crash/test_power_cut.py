"""The power fails: whatever is left of the log of a SQLite file, the store is as it was at some moment before."""

from __future__ import annotations

import hashlib
import random
import shutil
import signal
import sqlite3
import subprocess
from contextlib import closing
from pathlib import Path
from typing import NamedTuple

import pytest

from holdfast import Holdfast
from holdfast.model.states import State
from tests.support.effort import effort
from tests.support.histories import folded
from tests.support.noted_books import SEQUEL, STAGES, make_notes, noted_books, notes
from tests.support.processes import Crew, WorkerProcess, crew_on, wait_for

BOOKS = 20
AFTER = {stage: STAGES[:place][-1:] for place, stage in enumerate(STAGES)}

Done = set[tuple[str, str, str]]


class Image(NamedTuple):
    """What a disk holds at one instant, and what handlers had been given by then: (key, stage, mark)."""

    database: bytes
    log: bytes
    given: Done

    def put(self, folder: Path, length: int) -> Path:
        """Lay it down with only so much of the log."""
        folder.mkdir()
        (folder / "store.db").write_bytes(self.database)
        (folder / "store.db-wal").write_bytes(self.log[:length])
        return folder / "store.db"


@pytest.fixture
def database() -> str:
    return "sqlite"


@pytest.mark.fault(47)
@pytest.mark.req("V1", "V2", "V10")
def test_after_a_power_cut_the_store_is_as_it_was_at_some_moment_before(tmp_path: Path):
    """However much of the log is lost; and if nothing of it is, nothing is lost that a handler was ever given."""
    rng = random.Random(47)
    file = tmp_path / "store.db"
    with crew_on(f"sqlite:///{file}", tmp_path, "tests.support.noted_books:noted_books") as crew:
        crew.add(f"book-{number}" for number in range(BOOKS))
        make_notes(file)
        _empty_the_log(file)
        begun = hashlib.sha256(_content(file)).digest()
        worker = crew.start("w", concurrency=3)
        images = []
        for number in range(effort(2, 12)):
            lines = 15 * (number + 1) + rng.randrange(10)
            wait_for(lambda lines=lines: len(crew.ledger.lines()) >= lines, every=0.001)
            images.append(_image(crew, worker, file))
    cuts = []
    for number, image in enumerate(images):
        copies = tmp_path / f"image-{number}"
        copies.mkdir()
        whole = _open(image.put(copies / "whole", len(image.log)))
        assert image.given <= whole
        # A log that was copied into the database before could not be lost any more.
        if hashlib.sha256(image.database).digest() == begun:
            before: Done = set()
            for length in sorted(rng.sample(range(len(image.log)), effort(4, 20))):
                cuts.append(image.put(copies / str(length), length))
                found = _open(cuts[-1])
                assert before <= found <= whole, f"{length} bytes of the log"
                before = found
    assert cuts, "the log was copied into the database before the first image was taken"
    _finish(cuts[-1], tmp_path)


def _image(crew: Crew, worker: WorkerProcess, file: Path) -> Image:
    """Of an instant anywhere in what the worker does, also in the middle of a write."""
    worker.send(signal.SIGSTOP)
    wait_for(lambda: worker.is_frozen, every=0.001)
    database, log = _content(file), _content(Path(f"{file}-wal"))
    given = {(line.key, *line.seen.split()) for line in crew.ledger.starts() if line.seen}
    worker.thaw()
    return Image(database, log, given)


def _content(file: Path) -> bytes:
    """Read by another process: one that closes a file loses all its locks on it, those of its own connections, too."""
    return subprocess.run(["cat", file], stdout=subprocess.PIPE, check=True).stdout


def _open(file: Path) -> Done:
    """Open a copy and see that all that must be true is; what is done there, with whose mark."""
    with Holdfast(f"sqlite:///{file}", [noted_books.spec]) as app:
        assert app.check() == []
        keys = [row.key for row in app.items(most=10_000)]
        done = set()
        for key in keys:
            shown = app.show(key)
            states = {one.stage: State(one.state) for one in shown.stages if one.state is not None}
            # A claim leaves no trace in a history.
            told = {stage: State.PENDING if state is State.IN_PROGRESS else state for stage, state in states.items()}
            assert told == folded(shown.history, AFTER)
            done |= {(key, one.stage, one.result["mark"]) for one in shown.stages if one.state == "done"}
    fetched = {key for key, stage, _ in done if stage == "fetch" and not key.endswith(SEQUEL)}
    assert sorted(key for key in keys if key.endswith(SEQUEL)) == sorted(f"{key}{SEQUEL}" for key in fetched)
    noted = notes(file)
    assert len(noted) == len(set(noted))
    assert set(noted) == done
    return done


def _finish(file: Path, folder: Path) -> None:
    """What was cut short goes on from there as after any other death."""
    here = folder / "after"
    here.mkdir()
    with crew_on(f"sqlite:///{file}", here, "tests.support.noted_books:noted_books") as crew:
        assert crew.start("heir", drain=True).wait() == 0, crew.all_said()
        assert set(crew.states().values()) == {"done"}
    assert len(_open(file)) == len(notes(file)) == 2 * BOOKS * len(STAGES)
    shutil.rmtree(here)


def _empty_the_log(file: Path) -> None:
    with closing(sqlite3.connect(file, timeout=10)) as conn:
        conn.execute("PRAGMA wal_checkpoint(TRUNCATE)")
