"""The commands of the guides work as they are printed, on a store in which something is done, failed, in doubt and on hold.

Each block is typed on a copy of the same store. Lines that run until stopped, or that need a server or a number of the
reader's, are named with the reason; that their options exist is checked by test_guides.py.
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
from tests.docs.test_guides import ROOT, blocks

PAGES = (
    "first-steps",
    "handlers",
    "import",
    "large-results",
    "limits",
    "money",
    "operations",
    "tuning",
    "versions",
    "when-things-go-wrong",
)

#: Pages with commands that are not typed here: the test that does, or why none does.
OTHERS = {
    "README": "tests/docs/test_readme.py",
    "crash-tests": "tests/docs/test_crash_tests_guide.py",
    "dashboard": "tests/docs/test_commands_until_stopped.py",
    "half-an-hour": "tests/docs/test_half_an_hour.py",
    "job-file": "its worker is in tests/docs/test_commands_until_stopped.py, all else is typed below",
    "monitoring": "tests/docs/test_commands_until_stopped.py; the other lines are in tests/telemetry",
    "own-tables": "tests/docs/test_own_tables_commands.py; the migration is run by tests/examples/test_curation_guides.py",
    "results": "tests/export/test_views.py",
}
#: Pages with blocks that have no mark, so that nobody types them, and why.
WITHOUT_MARK = {
    "deployment": "for Docker, Kubernetes and systemd; tests/deploy checks the files that they use",
    "money": "what a repair prints after somebody has damaged the sums",
    "operations": "a line of a crontab; tests/cli/test_one_at_a_time.py runs its command",
    "typed-values": "an error, of tests/worker/test_typed_values.py",
}
#: Lines that are not typed here, and why.
LEFT_OUT = {
    r"holdfast (worker|ui) ": "typed by test_commands_until_stopped.py",
    r"postgresql:|s3://": "needs a server of the reader's",
    r"actions 12": "the number is that of the reader's action",
    r"^python ": "typed by test_readme.py",
}

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
    return [line.removeprefix("$ ") for line in re.sub(r"\\\n", "", block).splitlines() if line.strip()]


def every_block() -> Iterator[tuple[str, list[str]]]:
    for page in PAGES:
        for number, block in enumerate(blocks(ROOT / "docs" / "guide" / f"{page}.md", "sh")):
            kept = [line for line in lines_of(block) if not any(re.search(left, line) for left in LEFT_OUT)]
            if kept:
                yield f"{page} {number}", kept


BLOCKS = dict(every_block())


@pytest.mark.parametrize("name", BLOCKS)
def test_the_commands_of_the_block_do_what_they_are_there_for(
    name: str, world: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(world, copy, ignore=shutil.ignore_patterns("*-writer"))
    monkeypatch.chdir(copy)
    monkeypatch.delenv("HOLDFAST_URL", raising=False)
    for line in BLOCKS[name]:
        # Alternatives stand below each other: a call that is settled cannot be settled again.
        if "resolve v.epub" in line or "resolve page-7.pdf" in line:
            shutil.copyfile(world / "holdfast.db", copy / "holdfast.db")
        program, *words = shlex.split(line, comments=True)
        assert program == "holdfast"
        code, said = typed(*words)
        # Something has failed in this store, and a run says so.
        assert code == 0 or (code == 3 and words[0] == "run"), f"{line}: {code}: {said}"


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
    kept = [line for line in lines if not any(re.search(left, line) for left in LEFT_OUT)]
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


def test_every_page_with_commands_is_typed_somewhere_or_says_why_not() -> None:
    pages = {page.stem: page for page in (ROOT / "README.md", *(ROOT / "docs" / "guide").glob("*.md"))}
    assert {name for name, page in pages.items() if blocks(page, "sh", "console")} == {*PAGES, *OTHERS}
    named = [where.partition(";")[0] for where in OTHERS.values() if where.startswith("tests/")]
    assert [where for where in named if not (ROOT / where).is_file()] == []


def test_blocks_without_a_mark_are_those_that_nobody_can_type_here() -> None:
    found = set()
    for page in (ROOT / "README.md", *(ROOT / "docs" / "guide").glob("*.md")):
        # Every other fence begins a block.
        fences = re.findall(r"^```.*$", page.read_text(encoding="utf-8"), re.MULTILINE)
        if "```" in fences[::2]:
            found.add(page.stem)
    assert found == WITHOUT_MARK.keys()


def test_every_reason_to_leave_a_line_out_is_needed() -> None:
    lines = [
        line
        for page in PAGES
        for block in blocks(ROOT / "docs" / "guide" / f"{page}.md", "sh")
        for line in lines_of(block)
    ]
    assert [left for left in LEFT_OUT if not any(re.search(left, line) for line in lines)] == []
