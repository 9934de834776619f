"""Questions need no right to write: asked by another user, or by a role that may only read."""

from __future__ import annotations

import hashlib
import json
import os
import secrets
import shutil
import signal
import sqlite3
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit, urlunsplit

import psutil
import psycopg
import pytest
from psycopg import sql

from holdfast import Holdfast
from holdfast.model.states import State
from holdfast.program_file import load
from holdfast.schema import newest
from holdfast.store.sqlite_permissions import FILE_MODE
from tests.cli.conftest import BOOKS, STUCK_SECONDS, Commands
from tests.support.mother import Piped
from tests.support.other_user import COPIED_VARIABLE, as_root

pytestmark = pytest.mark.req("V14")

QUESTIONS = [
    ["status"],
    ["items"],
    ["items", "--state", "failed"],
    ["show", "good"],
    ["why", "bad"],
    ["events"],
    ["events", "--newest-first"],
    ["audit"],
    ["alerts"],
    ["sources"],
    ["errors"],
    ["export", "books", "--output", "/dev/null"],
    ["costs"],
    ["limits"],
    ["plan", "books.py"],
    ["doctor"],
    ["db", "check"],
]


class Shared:
    """A store of root's in a folder that others may look into, and the files of those who do."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "store"
        self.copies = folder / "copies"
        for one, mode in ((folder, 0o755), (self.folder, 0o755), (self.copies, 0o777)):
            one.mkdir(exist_ok=True)
            one.chmod(mode)
        self.file = self.folder / "store.db"
        self.owner = Commands(f"sqlite:///{self.file}")
        (folder / "books.py").write_text(BOOKS)
        os.chdir(folder)
        self.owner("add", "books.py", "good", "bad", "empty")
        with Holdfast(self.owner.url, load("books.py", None).specs) as app:
            app.run()

    def ask(self, *question: str, code: int = 0, **environment: str) -> Any:
        """What the other user gets told; with an error, its words."""
        said, errors = self.process(*question, **environment).communicate(timeout=STUCK_SECONDS)
        assert "Traceback" not in errors
        if code:
            assert errors.count("\n") == 1
            return errors
        assert not errors, errors
        return json.loads(said)

    def process(self, *question: str, **environment: str) -> Piped:
        given = {"HOLDFAST_URL": self.owner.url, "TMPDIR": str(self.copies), "PATH": os.environ["PATH"], **environment}
        return Piped("tests.support.other_user", [*question, "--json"], given, folder=Path.cwd())

    def files(self) -> dict[str, str]:
        """Every file of the store, and what is in it."""
        return {file.name: hashlib.blake2b(file.read_bytes()).hexdigest() for file in self.folder.iterdir()}

    @contextmanager
    def at_rest(self) -> Iterator[None]:
        assert {file.name for file in self.folder.iterdir()} == {"store.db", "store.db-writer"}
        yield

    @contextmanager
    def beside_a_worker(self) -> Iterator[None]:
        """A worker that lives; and that is frozen, so that nothing changes by itself."""
        worker = self.owner.start("worker", "books.py")
        self.owner("add", "books.py", "new")
        _await(lambda: self.owner.states()["chunk"].get("done") == 3)
        os.kill(worker.pid, signal.SIGSTOP)
        _await(lambda: psutil.Process(worker.pid).status() == psutil.STATUS_STOPPED)
        try:
            yield
        finally:
            worker.kill()
            worker.wait(STUCK_SECONDS)

    @contextmanager
    def after_a_kill(self) -> Iterator[None]:
        with self.beside_a_worker():
            pass
        assert self.beside("-wal").stat().st_size and self.beside("-shm").stat().st_size
        yield

    @contextmanager
    def after_a_kill_without_the_index(self) -> Iterator[None]:
        with self.after_a_kill():
            self.beside("-shm").unlink()
            yield

    def beside(self, end: str) -> Path:
        return Path(f"{self.file}{end}")


def _await(holds: Any) -> None:
    give_up_at = time.monotonic() + STUCK_SECONDS
    while not holds():
        assert time.monotonic() < give_up_at
        time.sleep(0.01)


@pytest.fixture
def shared(monkeypatch: pytest.MonkeyPatch) -> Iterator[Shared]:
    monkeypatch.setenv(FILE_MODE, "0644")
    # Not in pytest's own folder, which nobody else may enter.
    folder = Path(tempfile.mkdtemp(prefix="hf-shared-"))
    shared = Shared(folder)
    yield shared
    shared.owner.close()
    shutil.rmtree(folder)


STATES = ["at_rest", "beside_a_worker", "after_a_kill", "after_a_kill_without_the_index"]


@as_root
@pytest.mark.parametrize("state", STATES)
def test_a_user_who_may_only_read_gets_every_answer_and_changes_nothing(shared: Shared, state: str) -> None:
    with getattr(shared, state)():
        before = shared.files()
        answers = [shared.ask(*question) for question in QUESTIONS]
        assert shared.files() == before
        assert list(shared.copies.iterdir()) == []
        for question, answer in zip(QUESTIONS, answers, strict=True):
            if question != ["doctor"]:
                assert answer == shared.owner.json(*question), question
        [doctor] = [answer for question, answer in zip(QUESTIONS, answers, strict=True) if question == ["doctor"]]
        assert doctor["store"]["integrity"] == "ok"
        assert doctor["store"]["journal_mode"] == ("not in use" if state == "at_rest" else "wal")


@as_root
@pytest.mark.parametrize("state", ["at_rest", "after_a_kill_without_the_index"])
def test_a_reader_who_may_write_in_the_folder_leaves_nothing_that_is_in_the_owners_way(
    shared: Shared, state: str
) -> None:
    shared.folder.chmod(0o777)
    with getattr(shared, state)():
        before = shared.files()
        shared.ask("status")
        shared.ask("db", "check")
        assert shared.files() == before


@as_root
def test_a_log_that_is_made_by_accident_is_removed(shared: Shared, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between the look at the files and SQLite's opening them the last writer may go."""
    from holdfast.store.sqlite_reader import SQLiteReader

    shared.folder.chmod(0o777)
    looks = iter([False])
    at_rest = SQLiteReader._is_at_rest
    monkeypatch.setattr(SQLiteReader, "_is_at_rest", lambda self: next(looks, None) is None and at_rest(self))
    before = shared.files()
    pid = os.fork()
    if not pid:
        try:
            os.setgroups([])
            os.setgid(65534)
            os.setuid(65534)
            with Holdfast(shared.owner.url, create=False) as app:
                found = app.status()
            os._exit(0 if found else 1)
        finally:
            os._exit(2)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert shared.files() == before


@pytest.mark.parametrize("state", ["at_rest", "after_a_kill"])
def test_the_owners_questions_change_nothing_either(shared: Shared, state: str) -> None:
    with getattr(shared, state)():
        before = shared.files()
        for question in QUESTIONS:
            shared.owner(*question)
        after = shared.files()
        assert {**after, "store.db-shm": ""} == {**before, "store.db-shm": ""}
        assert after.keys() == before.keys()


@as_root
def test_what_is_too_large_to_be_copied_is_answered_with_what_to_do(shared: Shared) -> None:
    with shared.after_a_kill_without_the_index():
        before = shared.files()
        size = sum(file.stat().st_size for file in (shared.file, shared.beside("-wal")))
        said = shared.ask("status", code=5, **{COPIED_VARIABLE: str(size - 1)})
        assert "run `holdfast status` on it as root, or start a worker, and ask again" in said
        assert shared.ask("status", **{COPIED_VARIABLE: str(size)})
        assert shared.files() == before
        # And this is so.
        shared.owner("status")
        assert shared.ask("status", **{COPIED_VARIABLE: "0"})


@as_root
def test_a_file_that_may_not_be_read_is_one_clear_error(shared: Shared) -> None:
    shared.file.chmod(0o600)
    assert "cannot be read: ask its owner, root, for the right to read it" in shared.ask("status", code=5)
    shared.folder.chmod(0o700)
    assert "cannot be reached: you need the right to enter its folder" in shared.ask("status", code=5)


@as_root
def test_an_act_of_a_user_who_may_only_read_is_one_clear_error_and_changes_nothing(shared: Shared) -> None:
    before = shared.files()
    assert "cannot be written to: it is read-only" in shared.ask("retry", "--all", code=5)
    assert shared.files() == before


@as_root
def test_to_repair_takes_the_right_to_write(shared: Shared) -> None:
    with sqlite3.connect(shared.file) as conn:
        conn.execute("INSERT INTO holdfast_spent VALUES (1, 20000, 5, 0)")
    conn.close()
    before = shared.files()
    assert "cannot be written to: it is read-only" in shared.ask("db", "check", "--repair", code=5)
    assert shared.files() == before


def test_a_question_does_not_upgrade_the_tables(cli: Any, books: str, database: str) -> None:
    cli("add", books, "one")
    with _connected(cli.url, database) as conn:
        conn.execute(f"DELETE FROM {_table(cli.url, database)} WHERE version = {newest()}")
    for question in (["status"], ["doctor"], ["db", "check"]):
        said = cli(*question, code=5).stderr
        assert f"has schema {newest() - 1}, this holdfast needs {newest()}: run `holdfast db upgrade`" in said
    with Holdfast(cli.url, create=False) as app:
        assert app.schema_version() == newest() - 1


@contextmanager
def _connected(url: str, database: str) -> Iterator[Any]:
    if database == "postgres":
        with psycopg.connect(url.split("&schema=")[0].split("?schema=")[0], autocommit=True) as conn:
            yield conn
        return
    conn = sqlite3.connect(url.removeprefix("sqlite:///"), isolation_level=None)
    try:
        yield conn
    finally:
        conn.close()


def _table(url: str, database: str) -> str:
    return "holdfast_schema_version" if database == "sqlite" else f"{_schema(url)}.schema_version"


def _schema(url: str) -> str:
    return url.rpartition("schema=")[2]


# PostgreSQL -----------------------------------------------------------------------------------------------------------

#: What the guide says.
GUIDE = Path(__file__).parents[2] / "docs" / "guide" / "production-storage.md"
#: One run by the other, as the guide prints them.
GRANTS = ["db", "grants", "--worker", "worker", "--reader", "reader", "--store", "postgresql:///jobs"]


@pytest.fixture
def role(postgres: str) -> Iterator[str]:
    """A role that may log in, and nothing else."""
    name = f"reader_{secrets.token_hex(4)}"
    with psycopg.connect(postgres, autocommit=True) as conn:
        conn.execute(f"CREATE ROLE {name} LOGIN")
        yield name
        conn.execute(f"DROP OWNED BY {name}")
        conn.execute(f"DROP ROLE {name}")


@pytest.mark.parametrize("database", ["postgres"])
def test_a_role_that_may_only_read_the_tables_gets_every_answer(cli: Any, books: str, role: str) -> None:
    cli("add", books, "good", "bad", "empty")
    with Holdfast(cli.url, load(books, None).specs) as app:
        app.run()
    assert cli(*GRANTS).stdout in GUIDE.read_text()
    reader = Commands(_as_role(cli.url, role))
    assert "permission denied" in reader("status", code=5).stderr
    with _connected(cli.url, "postgres") as conn:
        for grant in cli("db", "grants", "--reader", role).stdout.splitlines():
            conn.execute(grant)
        for question in QUESTIONS:
            answer, owners = reader.json(*question), cli.json(*question)
            if question[0] == "export":
                # A server that others use moves on between two cursors.
                assert answer.pop("cursor") and owners.pop("cursor")
            if question != ["doctor"]:
                assert answer == owners, question
        assert reader("metrics", "--once").stdout.count("holdfast_stages{") == 2 * len(State)
        conn.execute(sql.SQL("SET ROLE {}").format(sql.Identifier(role)))
        assert conn.execute(reader("sql", "keda").stdout).fetchone() == (0,)
        for view in ("results", "item_stages_by_name", "costs"):
            conn.execute(sql.SQL("SELECT * FROM {}").format(sql.Identifier(_schema(cli.url), view))).fetchall()
        conn.execute("RESET ROLE")
        doctor = reader.json("doctor")["store"]
        # The connection of this test is another role's: whether it has a transaction open, the reader cannot see.
        assert doctor["hidden_sessions"] > 0
        assert doctor["oldest_transaction_seconds"] is None
        assert "oldest transaction seconds: unknown" in reader("doctor").stdout
    assert "permission denied" in reader("retry", "--all", code=5).stderr


def _as_role(url: str, role: str) -> str:
    parts = urlsplit(url)
    return urlunsplit(parts._replace(netloc=f"{role}@{parts.netloc.rpartition('@')[2]}"))
