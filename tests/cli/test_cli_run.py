"""`holdfast run` and `holdfast worker` as real processes: progress, summary, exit codes, signals."""

from __future__ import annotations

import json
import os
import pty
import re
import signal
import threading
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from holdfast import Holdfast
from holdfast.errors import StoreError
from holdfast.store.postgres_address import read_url
from holdfast.store.sqlite_files import file_of
from tests.cli.conftest import BOOKS, Commands
from tests.support.together import wait_for

Write = Callable[[str, str], str]

#: Waits until the test lets it go on: `started` tells that it runs, `go` lets it end.
HELD = """
import pathlib, time
from holdfast import Pipeline

held = Pipeline("held")
here = pathlib.Path(__file__).parent

@held.stage()
def hold(item, ctx):
    (here / f"started-{item.key}").touch()
    while not (here / "go").exists():
        time.sleep(0.005)
    return {"attempt": ctx.attempt}

@held.stage(after="hold")
def rest(item, ctx):
    return {}
"""


@pytest.fixture
def held(write: Write) -> str:
    return write("held.py", HELD)


def test_a_run_in_which_all_is_done_ends_with_0(cli: Any, books: str) -> None:
    cli("add", books, "a", "b", "empty")
    done = cli.process("run", books, anew=True)
    assert (done.returncode, done.stderr) == (0, "")
    lines = [line.split() for line in done.stdout.splitlines()]
    assert lines[0] == ["stage", "done", "skipped", "failed", "exhausted", "cancelled", "mean", "time"]
    assert lines[1][:6] == ["books/extract", "2", "1", "0", "0", "0"]
    assert lines[2][:6] == ["books/chunk", "3", "0", "0", "0", "0"]
    assert cli.process("run", books).returncode == 0


def test_a_run_in_which_items_failed_ends_with_3_and_says_which(cli: Any, books: str) -> None:
    cli("add", books, "good", *(f"bad-{n}" for n in range(7)))
    done = cli.process("run", books)
    assert done.returncode == 3
    assert done.stdout.count("at books/extract: Permanent: bad-") == 5
    assert "… and 2 more; to list them: holdfast items --pipeline books --state failed\n" in done.stdout
    assert "holdfast retry --pipeline books --state failed" in done.stdout


@pytest.mark.req("J21")
def test_the_hint_lists_what_is_exhausted_as_well_as_what_failed(cli: Any, write: Write) -> None:
    """As it is printed, the command lists all of them."""
    text = BOOKS.replace("@books.stage()", "@books.stage(max_attempts=1)").replace(
        'raise Permanent(f"{item.key} has no pages")',
        'raise Permanent("no pages") if item.key < "bad-4" else ValueError("torn")',
    )
    books = write("torn.py", text)
    cli("add", books, *(f"bad-{n}" for n in range(8)))
    said = cli.process("run", books).stdout
    [hint] = re.findall(r"… and 3 more; to list them: holdfast (.*)", said)
    assert hint == "items --pipeline books --state exhausted --state failed"
    found = Counter(one["state"] for one in cli.json(*hint.split()))
    assert found == {"failed": 4, "exhausted": 4}


def test_a_summary_in_json_is_all_that_comes_on_stdout(cli: Any, books: str) -> None:
    cli("add", books, "good", "bad")
    done = cli.process("run", books, "--json", "--progress-seconds", "0.01")
    assert done.returncode == 3
    summary = json.loads(done.stdout)
    assert (summary["interrupted"], summary["failed"]) == (False, 1)
    assert [one["key"] for one in summary["failures"]] == ["bad"]
    assert summary["pipelines"][0]["stages"][1]["states"] == {"done": 1}


def test_a_run_without_items_says_how_to_add_some(lite: Any, books: str) -> None:
    done = lite.process("run", books)
    assert done.returncode == 0
    assert "holdfast add books.py KEY" in done.stdout


def where(url: str) -> str:
    return str(file_of(url)) if url.startswith("sqlite:") else read_url(url)[2]


def test_adding_says_the_address_of_the_store_that_it_makes_and_says_it_once(bare: Commands, books: str) -> None:
    first, second = (bare.process("add", books, key, "--json") for key in "ab")
    [line] = first.stderr.splitlines()
    assert line.endswith(f"made a new store: {where(bare.url)}")
    assert second.stderr == ""
    assert [json.loads(one.stdout)["new"] for one in (first, second)] == [1, 1]


def test_a_run_says_that_its_store_is_new_and_empty(bare: Commands, books: str) -> None:
    done = bare.process("run", books, "--json")
    said = [line.partition(" holdfast.app")[2] for line in done.stderr.splitlines() if " holdfast.app" in line]
    assert said[0] == f".created: made a new store: {where(bare.url)}"
    assert said[1].startswith(f": {where(bare.url)} is a new store without items; if yours are in another one, name it")
    assert json.loads(done.stdout)["failed"] == 0
    assert "new store" not in bare.process("run", books).stderr


def test_a_quiet_run_says_nothing_of_a_new_store_that_a_source_fills(
    bare: Commands, write: Write, tmp_path: Path
) -> None:
    """An empty store is probably the wrong one; this is not."""
    (tmp_path / "items").mkdir()
    (tmp_path / "items" / "one.txt").write_text("1")
    write("handlers.py", "def work(item, ctx): ...\n")
    source = f'{{in: {{files: "{tmp_path}/items/*.txt"}}}}'
    job = f"pipelines: {{p: {{sources: {source}, stages: {{a: {{handler: handlers.work}}}}}}}}\n"
    done = bare.process("run", write("job.yaml", job), "--quiet")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_a_quiet_run_warns_of_a_new_store_without_items(bare: Commands, books: str) -> None:
    done = bare.process("run", books, "--quiet")
    [line] = done.stderr.splitlines()
    assert "is a new store without items" in line and done.stdout == ""


def test_a_worker_says_that_its_store_is_new_and_empty(bare: Commands, books: str) -> None:
    process = bare.start("worker", books)
    assert process.stderr is not None
    said: list[str] = []
    while "without items" not in (line := process.stderr.readline()):
        assert line, said
        said.append(line)
    assert any(f"made a new store: {where(bare.url)}" in line for line in said)


def test_a_run_whose_sources_fill_a_new_store_says_its_address_alone(lite: Commands, books: str, write: Write) -> None:
    write("moby-dick.epub", "")
    with Path(books).open("a") as file:
        file.write('\nbooks.source("inbox", files="*.epub")\n')
    said = lite.process("run", books).stderr
    assert f"made a new store: {where(lite.url)}" in said
    assert "without items" not in said


def test_progress_is_a_line_now_and_then_where_there_is_no_terminal(cli: Any, held: str) -> None:
    cli("add", held, "a", "b")
    process = cli.start("run", held, "--progress-seconds", "0.05")
    assert process.stdout is not None
    line = next(line for line in process.stdout if "running" in line)
    assert re.fullmatch(r"held/hold: 0 done, 2 running; held/rest: 0 done\n", line)
    Path("go").touch()
    rest, _ = process.communicate(timeout=30)
    assert process.returncode == 0
    assert rest.splitlines()[-1].split()[:2] == ["held/rest", "2"]


def test_progress_is_bars_on_a_terminal(lite: Any, held: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also on one that does not know its size, as in a container: the table at the end has all of its columns."""
    monkeypatch.delenv("COLUMNS", raising=False)
    lite("add", held, "a", "b", "c")
    ours, its = pty.openpty()
    process = lite.start("run", held, stdout=its, stderr=its, anew=True)
    os.close(its)
    shown: list[str] = []
    reader = threading.Thread(target=read_terminal, args=(ours, shown))
    reader.start()
    wait_for(lambda: "0/3" in "".join(shown))
    Path("go").touch()
    assert process.wait(timeout=30) == 0
    reader.join(timeout=20)
    os.close(ours)
    said = "".join(shown)
    assert "held/hold" in said and "held/rest" in said and "3/3" in said
    assert "━" in said
    assert "mean time" in said.rpartition("3/3")[2]


def read_terminal(terminal: int, into: list[str]) -> None:
    while True:
        try:
            some = os.read(terminal, 65536)
        except OSError:
            return
        if not some:
            return
        into.append(some.decode(errors="replace"))


@pytest.mark.fault(9)
@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_an_interrupted_run_says_so_and_goes_on_when_started_again(
    lite: Any, held: str, number: int, code: int
) -> None:
    """The first signal lets handlers end within the grace; what is not begun is left for the next run."""
    lite("add", held, "a", "b")
    process = lite.start("run", held, "--concurrency", "1", "--grace", "30s")
    wait_for(lambda: list(Path(".").glob("started-*")))
    process.send_signal(number)
    assert process.stderr is not None
    wait_for(lambda: "stopping" in process.stderr.readline())
    Path("go").touch()
    said, _ = process.communicate(timeout=30)
    assert process.returncode == code
    assert "Interrupted with" in said
    assert lite.process("run", held).returncode == 0
    assert lite.states() == {"hold": {"done": 2}, "rest": {"done": 2}}


@pytest.mark.fault(10)
def test_a_second_signal_hands_everything_back_at_once(cli: Any, held: str) -> None:
    cli("add", held, "a")
    process = cli.start("worker", held, "--grace", "1h")
    wait_for(lambda: Path("started-a").exists())
    process.send_signal(signal.SIGTERM)
    assert process.stderr is not None
    wait_for(lambda: "stopping" in process.stderr.readline())
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=30)
    assert process.returncode == 0
    assert cli.states()["hold"] == {"pending": 1}
    Path("go").touch()
    assert cli.process("run", held).returncode == 0
    assert cli.json("show", "a")["stages"][0]["result"] == {"attempt": 1}, "the attempt was given back"


@pytest.mark.fault(1)
def test_a_run_that_was_killed_goes_on_when_started_again(cli: Any, books: str) -> None:
    cli("add", books, *(f"book-{n}" for n in range(20)))
    killed = cli.process("run", books, env={"HOLDFAST_CRASH_AT": "commit.after:4"})
    assert killed.returncode == -signal.SIGKILL
    assert cli.process("run", books, "--lease", "1s").returncode == 0
    assert cli.states() == {"extract": {"done": 20}, "chunk": {"done": 20}}


def test_work_goes_on_when_nobody_reads_the_progress_any_more(lite: Any, held: str) -> None:
    lite("add", held, "a")
    process = lite.start("run", held, "--progress-seconds", "0.01", anew=True)
    assert process.stdout is not None
    process.stdout.readline()
    process.stdout.close()
    Path("go").touch()
    assert process.wait(timeout=30) == 141
    process.stdout = None
    assert lite.states() == {"hold": {"done": 1}, "rest": {"done": 1}}


def test_a_run_of_some_stages_ends_when_these_are_done(lite: Any, books: str) -> None:
    lite("add", books, "a")
    done = lite.process("run", books, "--stages", "extract")
    assert done.returncode == 0
    assert "left" in done.stdout.splitlines()[0]
    assert lite.states() == {"extract": {"done": 1}, "chunk": {"pending": 1}}


def test_only_named_stages_are_offered(cli: Any, books: str) -> None:
    cli("add", books, "a")
    process = cli.start(
        "worker", books, "--stages", "books/extract, ", "--name", "half", "--concurrency", "2", "--poll", "0.1"
    )
    wait_for(lambda: cli.states() == {"extract": {"done": 1}, "chunk": {"pending": 1}})
    [one] = cli.json("status")["workers"]
    assert (one["name"], one["stages"]) == ("half", ["books/extract"])
    process.terminate()
    process.communicate(timeout=30)
    assert process.returncode == 0


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (["--stages", "nobody"], "no pipeline here has the stage nobody"),
        (["--lease", "soon"], "--lease: 'soon' is not a length of time"),
        (["--lease", "0.1"], "it must be 0.2 s or longer"),
        (["--concurrency", "0"], "--concurrency"),
        (["--poll", "0"], "poll longer than zero"),
    ],
)
@pytest.mark.parametrize("command", ["run", "worker"])
def test_a_wrong_setting_is_wrong_usage(lite: Any, books: str, command: str, args: list[str], said: str) -> None:
    lite("add", books, "a")
    result = lite(command, books, *args, code=2)
    assert said in result.stderr and result.stderr.count("\n") == 1


def unfinished_database(kind: str, folder: Path) -> str:
    """The address of a store that cannot be used."""
    path = folder / "wrong.db"
    if kind == "an unknown kind":
        return "mysql://user:secret@host/db"
    if kind == "no address at all":
        return "wrong.db"
    if kind == "no database":
        path.write_text("This is a letter to my aunt. " * 100)
    if kind == "a newer schema":
        with Holdfast(f"sqlite:///{path}") as app:
            app.upgrade()
        import sqlite3

        with sqlite3.connect(path) as conn:
            conn.execute("INSERT INTO holdfast_schema_version VALUES (999, 'later', 0)")
        conn.close()
    if kind == "a folder":
        path.mkdir()
    if kind == "a folder that cannot be written to":
        return "sqlite:////proc/holdfast.db"
    if kind == "a folder that is not there":
        return "sqlite:////no/such/folder/x.db"
    if kind == "a server that is not there":
        return "postgresql://nobody@127.0.0.1:1/none?connect_timeout=1"
    return f"sqlite:///{path}"


WRONG_STORES = {
    "an unknown kind": (2, "write sqlite:///path/to/file.db or postgresql://"),
    "no address at all": (2, "write sqlite:///path/to/file.db or postgresql://"),
    "no database": (5, "wrong.db is not a SQLite database"),
    "a newer schema": (5, "has schema 999, this holdfast knows "),
    "a folder": (5, "wrong.db is a folder"),
    "a folder that cannot be written to": (5, "/proc/holdfast.db cannot be made"),
    "a folder that is not there": (5, "/no/such/folder does not exist"),
}


@pytest.mark.parametrize("kind", WRONG_STORES)
@pytest.mark.parametrize("command", ["run FILE", "worker FILE", "add FILE a", "db upgrade", "status"])
def test_a_store_that_cannot_be_used_is_told_in_one_line(
    lite: Any, books: str, tmp_path: Path, command: str, kind: str
) -> None:
    url = unfinished_database(kind, tmp_path)
    code, said = WRONG_STORES[kind]
    if kind.startswith("a folder that cannot") and command == "status":
        said = "/proc/holdfast.db does not exist"
    if kind == "a folder that is not there" and command == "status":
        said = "/no/such/folder/x.db does not exist"
    before = snapshot(tmp_path)
    args = [books if word == "FILE" else word for word in command.split()]
    result = lite(*args, "--store", url, code=code)
    assert said in result.stderr
    assert result.stderr.startswith("holdfast: ") and result.stderr.count("\n") == 1
    assert "secret" not in result.stderr
    assert result.stdout == ""
    assert snapshot(tmp_path) == before


def snapshot(folder: Path) -> dict[str, bytes]:
    """The databases of a folder, without the files that only coordinate."""
    return {path.name: path.read_bytes() for path in folder.glob("*.db") if path.is_file()}


def test_a_server_that_is_not_there_ends_a_question_with_5(lite: Any) -> None:
    url = unfinished_database("a server that is not there", Path("."))
    result = lite("status", "--store", url, code=5)
    assert "127.0.0.1:1" in result.stderr and result.stderr.count("\n") == 1


def test_a_store_that_breaks_while_a_run_works_ends_it_with_5(lite: Any, held: str, tmp_path: Path) -> None:
    lite("add", held, "a")
    process = lite.start("run", held, "--lease", "1s")
    wait_for(lambda: Path("started-a").exists())
    (tmp_path / "store.db").unlink()
    _, said = process.communicate(timeout=30)
    assert process.returncode == 5
    assert "was removed or replaced while it was in use" in said.splitlines()[-1]
    assert not (tmp_path / "store.db").exists()
    with pytest.raises(StoreError):
        Holdfast(lite.url, create=False)
