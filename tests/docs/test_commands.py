"""The commands of the README and the guides work as they are printed, on a store in which something is done, failed, in doubt
and on hold.

Each block is typed on a copy of the same store, with the number of a real action in place of the page's. A line that is not
typed here is named with the test that types it, or with the reason why none can; that its options exist is checked by
test_guides.py.
"""

from __future__ import annotations

import json
import re
import shlex
import shutil
import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

from holdfast.cli import commands
from holdfast.engine import actions, selection
from holdfast.engine.retry_and_cancel import CancelStages
from holdfast.engine.selection import Who
from holdfast.model.item_filter import Which
from holdfast.model.states import State
from holdfast.store import open_store
from tests.docs import test_commands_until_stopped
from tests.docs.test_blocks import single
from tests.docs.test_guides import ROOT, blocks

PAGES = {page.stem: page for page in (ROOT / "README.md", *sorted((ROOT / "docs" / "guide").glob("*.md")))}

UNTIL_STOPPED = "tests/docs/test_commands_until_stopped.py"
NO_BUCKET = "needs a bucket of the reader's; tests/blobs/test_remote.py does the same in memory"
#: Lines that are not typed here, by their page: the test that types them, or why none does.
LEFT_OUT = {
    "README": {
        r"^pip install -e ": "needs the network; tests/docs/test_example_readmes.py types one like it, with `make testall`",
        r"^make demo ": "tests/examples/test_demos.py",
        r"^make test ": "it is what runs this test",
    },
    "dashboard": {r"^holdfast ui ": UNTIL_STOPPED},
    "first-steps": {
        r"^(python|rm) ": "tests/docs/test_readme.py",
        r"^(HOLDFAST_URL=\S+ )?holdfast worker ": UNTIL_STOPPED,
    },
    "half-an-hour": {r"": "tests/docs/test_half_an_hour.py"},
    "job-file": {
        r"^holdfast worker ": UNTIL_STOPPED,
        r"^holdfast (check|add|run|schema)\b": "test_the_commands_of_the_page_about_job_files_work",
    },
    "large-results": {r" s3://": NO_BUCKET},
    "monitoring": {
        r"^holdfast (worker|metrics --port) ": UNTIL_STOPPED,
        r"^test ": "tests/telemetry/test_health.py",
    },
    "operations": {r"^holdfast worker ": UNTIL_STOPPED},
    "own-tables": {r"^holdfast (loop|check|adopt-sql) ": "tests/docs/test_own_tables_commands.py"},
    "results": {r"": "tests/export/test_views.py"},
}
#: The blocks that show commands together with what they print, by page and number, and the tests that type them.
SESSIONS = {
    "README 0": "tests/docs/test_readme.py",
    "crash-tests 0": "tests/docs/test_crash_tests_guide.py",
    "half-an-hour 0-5": "tests/docs/test_half_an_hour.py",
    "job-file 0": "test_a_wrong_job_file_is_reported_as_the_guide_shows",
    "when-things-go-wrong 0-8": "tests/docs/test_trouble_guide.py",
}
#: Pages with blocks that have no mark, so that nobody types them, and why.
WITHOUT_MARK = {
    "deployment": "for Docker, Kubernetes and systemd; tests/deploy checks the files that they use",
    "money": "what a repair prints after somebody has damaged the sums",
    "operations": "a line of a crontab; tests/cli/test_one_at_a_time.py runs its command",
    "typed-values": "an error, of tests/worker/test_typed_values.py",
}
#: The action of the pages.
ACTION = "actions 12"

BOOKS = """
from holdfast import Backoff, Permanent, Pipeline

AT_ONCE = Backoff(first_seconds=0, most_seconds=0)
books = Pipeline("books", resources={"gemini": {}, "llm": {}})


def call(key):
    if key in ("v.epub", "page-7.pdf"):
        raise RuntimeError("the line went dead")  # after the call was sent: nobody knows what became of it
    return f"about {key}"


@books.stage(resource="gemini", backoff=AT_ONCE)
def extract(item, ctx):
    if item.key == "gormenghast":
        raise Permanent(f"{item.key} is not on the shelf")
    if item.key == "page-7.pdf":
        return {}
    ctx.event("user.price_changed", old=3, new=4)
    ctx.keep(b"a page")
    return ctx.once("gemini", call, item.key, cost="0.40", on_doubt="hold")


@books.stage(resource="llm", backoff=AT_ONCE)
def summary(item, ctx):
    return ctx.once("ask", call, item.key, cost="0.40", on_doubt="hold") if item.key == "page-7.pdf" else None
"""
LINKS = """
from holdfast import Pipeline

links = Pipeline("links")


@links.stage()
def link(item, ctx): ...
"""


def typed(*words: str) -> tuple[int, str]:
    # As on a wide screen, where nothing is left out.
    done = CliRunner(env={"COLUMNS": "200"}).invoke(commands, list(words))
    return done.exit_code, done.output


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("world")
    (folder / "books.py").write_text(BOOKS)
    (folder / "links.py").write_text(LINKS)
    (folder / "urls.txt").write_text("http://example.org/a\n")
    (folder / "books.jsonl").write_text('{"key": "emma", "pages": 474}\n')
    with sqlite3.connect(folder / "old.db") as old:
        old.execute(
            "CREATE TABLE work_items (id INTEGER PRIMARY KEY, job_id TEXT, item_key TEXT, stages TEXT, data TEXT)"
        )
        old.execute(
            "INSERT INTO work_items VALUES (1, 'books', 'old.epub', ?, '{}')", [json.dumps({"extract": "done"})]
        )
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.delenv("HOLDFAST_URL", raising=False)
        assert typed("add", "books.py", "walden", "gormenghast", "v.epub", "page-7.pdf")[0] == 0
        assert typed("run", "books.py", "--quiet")[0] == 3
        assert typed("add", "links.py", "page-3")[0] == 0
        assert typed("run", "links.py", "--quiet")[0] == 0
        held = json.loads(typed("items", "--state", "on_hold", "--json")[1])
        assert {row["key"] for row in held} == {"v.epub", "page-7.pdf"}
    return folder


def lines_of(block: str) -> list[str]:
    return [line for line in re.sub(r"\\\n", "", block).splitlines() if line.strip()]


def every_line() -> Iterator[tuple[str, int, str]]:
    """Each line of a block of commands: its page, the number of its block there, and the line."""
    for name, page in PAGES.items():
        for number, block in enumerate(blocks(page, "sh")):
            for line in lines_of(block):
                yield name, number, line


def left_out(page: str, line: str) -> str | None:
    """Where it is typed instead, or why nowhere."""
    return next((where for left, where in LEFT_OUT.get(page, {}).items() if re.search(left, line)), None)


BLOCKS: dict[str, list[str]] = {}
for page, number, line in every_line():
    if left_out(page, line) is None:
        BLOCKS.setdefault(f"{page} {number}", []).append(line)


def a_real_action(line: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """The line with the number of an action that was just begun: finished, or interrupted if that is what the line is for."""
    cancel = CancelStages(Which("books", states=frozenset({State.ON_HOLD})))
    with monkeypatch.context() as patch:
        patch.setattr(selection, "CHUNK", 1)
        store = open_store("sqlite:///holdfast.db")
        begun = store.write(lambda tx: actions.begin(tx, cancel, Who("ada", "wrong edition")))
        store.close()
    assert begun is not None
    number = str(begun.id)
    if not re.search("--continue|--stop", line):
        assert typed("actions", number, "--continue")[0] == 0
    return line.replace(ACTION, f"actions {number}")


@pytest.mark.parametrize("name", BLOCKS)
def test_the_commands_of_the_block_do_what_they_are_there_for(
    name: str, world: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(world, copy, ignore=shutil.ignore_patterns("*-writer"))
    monkeypatch.chdir(copy)
    monkeypatch.delenv("HOLDFAST_URL", raising=False)
    for line in BLOCKS[name]:
        # Alternatives stand below each other: what is settled, stopped or undone cannot be settled, stopped or undone again.
        if "resolve v.epub" in line or "resolve page-7.pdf" in line or ACTION in line:
            shutil.copyfile(world / "holdfast.db", copy / "holdfast.db")
        command = a_real_action(line, monkeypatch) if ACTION in line else line
        program, *words = shlex.split(command, comments=True)
        assert program == "holdfast"
        code, said = typed(*words)
        # Something has failed in this store, and a run says so.
        assert code == 0 or (code == 3 and words[0] == "run"), f"{line}: {code}: {said}"
        assert "Nothing that action" not in said


def test_the_commands_of_the_page_about_job_files_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = ROOT / "docs" / "guide" / "job-file.md"
    job, *_ = blocks(page, "yaml")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delenv("HOLDFAST_URL", raising=False)
    monkeypatch.setenv("ALERT_URL", "https://example.org/hook")
    # Its pipeline works at night, on a large disk; another test may have loaded a module of this name.
    job = job.replace('hours: "22:00-06:00", disk_free: 5GB', "disk_free: 1MB")
    Path("holdfast.yaml").write_text(job.replace(": books.", ": shelf_of_the_job."))
    functions = ("extract(item, ctx): ...", "chunk(item, ctx): ...", "count_tokens(item): return 1")
    Path("shelf_of_the_job.py").write_text("".join(f"def {one}\n" for one in functions))
    lines = [line for block in blocks(page, "sh") for line in lines_of(block)]
    kept = [line for line in lines if left_out("job-file", line) != UNTIL_STOPPED]
    assert len(kept) == 4
    for line in kept:
        words = shlex.split(line.partition(">")[0])[1:]
        code, said = typed(*words)
        assert code == 0, f"{line}: {said}"
    with sqlite3.connect("books.db") as store:
        assert store.execute("SELECT count(*) FROM holdfast_outcomes").fetchone() == (2,)


def test_a_wrong_job_file_is_reported_as_the_guide_shows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = ROOT / "docs" / "guide" / "job-file.md"
    job, *_ = blocks(page, "yaml")
    [shown] = blocks(page, "console")
    command, *lines = shown.removeprefix("$ ").splitlines()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ALERT_URL", "https://example.org/hook")
    Path("holdfast.yaml").write_text(
        job.replace("60/min", "60/mon").replace("handler: books.extract", "handlr: books.extract")
    )
    code, said = typed(*command.split()[1:])
    assert (code, [line for line in said.splitlines() if line in lines]) == (4, lines)


def test_every_session_is_typed_by_a_test() -> None:
    sessions = [f"{name} {number}" for name, page in PAGES.items() for number, _ in enumerate(blocks(page, "console"))]
    assert sorted(dict(single(SESSIONS))) == sorted(sessions)


def test_a_line_that_is_left_out_is_typed_by_the_test_that_is_named() -> None:
    lines = [(page, line) for page, _, line in every_line()]
    needed = {(page, left) for page, patterns in LEFT_OUT.items() for left in patterns}
    assert needed == {
        (page, left) for page, left in needed if any(p == page and re.search(left, one) for p, one in lines)
    }
    elsewhere = {one for _, one in test_commands_until_stopped.every_line()}
    assert {one for page, one in lines if left_out(page, one) == UNTIL_STOPPED} == elsewhere
    named = {*SESSIONS.values(), *(where for patterns in LEFT_OUT.values() for where in patterns.values())}
    assert [where for where in named if where.startswith("tests/") and not (ROOT / where).is_file()] == []
    assert [where for where in named if where.startswith("test_") and where not in globals()] == []


def test_blocks_without_a_mark_are_those_that_nobody_can_type_here() -> None:
    found = set()
    for page in PAGES.values():
        # Every other fence begins a block.
        fences = re.findall(r"^```.*$", page.read_text(encoding="utf-8"), re.MULTILINE)
        if "```" in fences[::2]:
            found.add(page.stem)
    assert found == WITHOUT_MARK.keys()
