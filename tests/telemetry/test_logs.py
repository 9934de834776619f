"""Log records name the attempt that made them, in any logger; commands print them as text or as JSON, one per line."""

from __future__ import annotations

import asyncio
import io
import json
import logging
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from holdfast import BatchContext, Context, Holdfast, Item, Pipeline, points
from holdfast.cli import commands
from holdfast.cli.logs import set_up
from holdfast.model.log_lines import logger as holdfast_logger
from holdfast.model.log_lines import printable
from holdfast.program_file import load
from holdfast.telemetry.log_context import JsonLines
from tests.docs.test_guides import ROOT, blocks
from tests.support import recipes
from tests.support.bench import Bench
from tools.reference.command_line import every_command

pytestmark = pytest.mark.req("P18")

#: For processes, on a busy machine.
PATIENCE_SECONDS = 300.0
ELSEWHERE = "somebody.elses.library"


class Kept(logging.Handler):
    """What a handler of the user's own gets."""

    def __init__(self) -> None:
        super().__init__()
        self.records: list[logging.LogRecord] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.records.append(record)

    def about(self, message: str) -> dict[str, Any]:
        """What the one record with this message says about its attempt."""
        [record] = [record for record in self.records if record.getMessage() == message]
        return getattr(record, "holdfast", {})


@pytest.fixture
def run(url: str) -> Iterator[Bench]:
    bench = Bench(url)
    yield bench
    bench.close()


@pytest.fixture
def kept() -> Iterator[Kept]:
    """The records of a logger that holdfast does not know, and that passes nothing on."""
    handler, logger = Kept(), logging.getLogger(ELSEWHERE)
    logger.addHandler(handler)
    logger.propagate = False
    yield handler
    logger.removeHandler(handler)
    logger.propagate = True


def say(message: str) -> None:
    logging.getLogger(ELSEWHERE).warning(message)


def test_a_record_of_any_logger_names_the_attempt_it_was_made_in(run: Bench, kept: Kept):
    pipeline = Pipeline("books")

    @pipeline.stage(version="7", backoff=0, max_attempts=2)
    def work(item: Item, ctx: Context) -> None:
        say(f"{item.key} {ctx.attempt}")
        if ctx.attempt == 1 and item.key == "a":
            raise ValueError("again")

    run(pipeline, ["a", "b"], name="me")
    usual = {"holdfast.pipeline": "books", "holdfast.stage": "work", "holdfast.version": "7", "holdfast.worker": "me"}
    for key, attempt in (("a", 1), ("a", 2), ("b", 1)):
        about = kept.about(f"{key} {attempt}")
        assert about.pop("holdfast.lease") > 0
        assert about == {**usual, "holdfast.item.key": key, "holdfast.attempt": attempt}


def test_tasks_and_threads_of_an_async_handler_log_for_their_own_attempt(run: Bench, kept: Kept):
    pipeline, both = Pipeline("books"), asyncio.Event()

    @pipeline.stage()
    async def work(item: Item, ctx: Context) -> None:
        # Both handlers are under way, on one event loop, when they log.
        if item.key == "b":
            both.set()
        await both.wait()
        say(f"handler {item.key}")
        await asyncio.gather(*(asyncio.create_task(in_task(item.key)) for _ in "x"))
        await asyncio.to_thread(say, f"thread {item.key}")

    async def in_task(key: str) -> None:
        say(f"task {key}")

    run(pipeline, ["a", "b"])
    for where in ("handler", "task", "thread"):
        for key in "ab":
            assert kept.about(f"{where} {key}")["holdfast.item.key"] == key


def test_threads_and_tasks_of_a_sync_handler_log_for_its_attempt_if_they_run_in_its_context(run: Bench, kept: Kept):
    pipeline = Pipeline("books")

    @pipeline.stage()
    def work(item: Item, ctx: Context) -> None:
        thread = threading.Thread(target=copy_context().run, args=(say, f"copied {item.key}"))
        stranger = threading.Thread(target=say, args=(f"stranger {item.key}",))
        for one in (thread, stranger):
            one.start()
            one.join()
        asyncio.run(asyncio.to_thread(say, f"to_thread {item.key}"))
        with ThreadPoolExecutor() as pool:
            pool.submit(copy_context().run, say, f"pool {item.key}")

    run(pipeline, ["a", "b"])
    for where in ("copied", "to_thread", "pool"):
        for key in "ab":
            assert kept.about(f"{where} {key}")["holdfast.item.key"] == key
    # From Python 3.14 on, a thread may inherit the context of the one that starts it.
    inherits = getattr(sys.flags, "thread_inherit_context", 0)
    assert [bool(kept.about(f"stranger {key}")) for key in "ab"] == [bool(inherits)] * 2


def test_the_log_of_the_context_names_its_attempt_in_a_thread_that_inherits_nothing(run: Bench):
    pipeline, kept = Pipeline("books"), Kept()

    @pipeline.stage()
    def work(item: Item, ctx: Context) -> None:
        thread = threading.Thread(target=lambda: ctx.log.warning("from a thread, 100%"))
        thread.start()
        thread.join()

    logging.getLogger("holdfast.stage.books.work").addHandler(kept)
    run(pipeline, ["50%"])
    logging.getLogger("holdfast.stage.books.work").removeHandler(kept)
    assert kept.about("[50% work #1] from a thread, 100%")["holdfast.item.key"] == "50%"


def test_a_record_of_a_batch_names_the_stage_and_one_about_an_item_names_the_item(run: Bench, kept: Kept):
    pipeline = Pipeline("books")

    @pipeline.stage(batch=2)
    def work(items: list[Item], ctx: BatchContext) -> list[None]:
        say(f"{len(items)} together")
        ctx.of(items[1]).log.warning("look")
        return [None] * len(items)

    logging.getLogger("holdfast.stage.books.work").addHandler(kept)
    run(pipeline, ["a", "b"])
    logging.getLogger("holdfast.stage.books.work").removeHandler(kept)
    about = kept.about("2 together")
    assert about["messaging.batch.message_count"] == 2
    assert about["holdfast.stage"] == "work"
    assert "holdfast.item.key" not in about
    assert kept.about("[b work #1] look")["holdfast.item.key"] == "b"


def test_after_the_handler_records_name_no_attempt_and_the_programs_factory_is_back(run: Bench, kept: Kept):
    before = logging.getLogRecordFactory()
    made: list[str] = []

    def mine(*args: Any, **kwargs: Any) -> logging.LogRecord:
        record = before(*args, **kwargs)
        made.append(record.getMessage())
        return record

    logging.setLogRecordFactory(mine)
    try:
        pipeline = Pipeline("books")

        @pipeline.stage()
        def work(item: Item, ctx: Context) -> None:
            ctx.effect(lambda connection: say("in the commit"))
            say("in the handler")

        run(pipeline, ["a"])
        assert logging.getLogRecordFactory() is mine
    finally:
        logging.setLogRecordFactory(before)
    say("after the run")
    assert "in the handler" in made
    assert kept.about("in the handler")["holdfast.item.key"] == "a"
    assert kept.about("in the commit") == kept.about("after the run") == {}


@pytest.mark.parametrize("is_async", [False, True])
def test_the_thread_of_a_handler_names_no_attempt_once_the_handler_has_ended(run: Bench, kept: Kept, is_async: bool):
    """It commits, and runs what is next, and may log meanwhile."""
    pipeline = Pipeline("books")

    def work(item: Item, ctx: Context) -> None:
        say("in the handler")

    async def work_async(item: Item, ctx: Context) -> None:
        say("in the handler")

    pipeline.stage(name="work")(work_async if is_async else work)
    before = points.listen(lambda point: say("behind it") if point == "run.after" else None)
    try:
        run(pipeline, ["a"])
    finally:
        points.listen(before)
    assert kept.about("in the handler")["holdfast.item.key"] == "a"
    assert kept.about("behind it") == {}


def test_a_factory_that_is_built_on_ours_meanwhile_stays_and_goes_on_working(run: Bench, kept: Kept):
    before = logging.getLogRecordFactory()
    pipeline = Pipeline("books")

    @pipeline.stage()
    def work(item: Item, ctx: Context) -> None:
        below = logging.getLogRecordFactory()
        logging.setLogRecordFactory(lambda *args, **kwargs: below(*args, **kwargs))
        say(item.key)

    try:
        run(pipeline, ["a"])
        run(pipeline, ["b"])
        say("outside")
    finally:
        logging.setLogRecordFactory(before)
    assert [kept.about(key)["holdfast.item.key"] for key in "ab"] == ["a", "b"]
    assert kept.about("outside") == {}


# As JSON --------------------------------------------------------------------------------------------------------------


def line_of(record: logging.LogRecord) -> dict[str, Any]:
    text = JsonLines().format(record)
    assert text.isprintable(), (
        "one line, for every program that splits lines, and nothing that moves a terminal's cursor"
    )
    found: dict[str, Any] = json.loads(text)
    return found


def test_a_line_of_json_has_what_the_program_gave_as_extra_but_no_secret_in_it():
    extra = {"pages": 3, "odd": object, "url": "https://me:hunter22@host/", "level": 1}
    line = line_of(logging.makeLogRecord({"msg": "m", "levelname": "INFO", **extra}))
    assert line["pages"] == 3
    assert line["odd"] == str(object)
    assert "hunter22" not in line["url"]
    assert line["level"] == "INFO", "a record's own facts are not replaced"


def test_a_line_of_json_can_hold_any_text():
    record = logging.makeLogRecord({"msg": "a\ud800\nb", "name": "n\udc00", "exc_text": "T\n\udfff", "x": "\udc80"})
    line = line_of(record)
    assert line["message"] == "a\\ud800\nb"
    assert line["exception"] == "T\n\\udfff"


@pytest.mark.parametrize("name", ["holdfast.stage.books.work", "mine"])
def test_a_message_of_several_lines_is_one_line_of_json_that_gives_it_back_and_one_escaped_line_of_text(
    name: str, monkeypatch: pytest.MonkeyPatch
):
    """In loggers of holdfast, which clean their records before any handler sees them, and in others."""
    said = 'first\nsecond line\r\x1b[2J\u2028\x9b31m\U000e0001 \\n "é" 🦊'
    logger = holdfast_logger(name) if name.startswith("holdfast") else logging.getLogger(name)
    shown = {}
    for form in ("json", "console"):
        monkeypatch.setattr(sys, "stderr", io.StringIO())
        set_up(0, form)
        logger.warning("%s password=hunter22", said)
        shown[form] = sys.stderr.getvalue().removesuffix("\n")
    set_up(0)
    assert all(text.isprintable() for text in shown.values())
    line = json.loads(shown["json"])
    assert line["message"] == f"{said} password=***"
    assert "first\\nsecond line" in shown["json"]
    assert shown["console"].endswith(f"WARNING {name}: {printable(said)} password=***")


def test_whatever_runs_as_a_service_can_log_as_json_and_the_guide_names_it():
    has_it = {name for name, command in every_command() if any("--log-format" in one.opts for one in command.params)}
    assert {words[0] for _, words in recipes.commands()} - {"db"} <= has_it
    [said] = re.findall(r"^(`run`.*) have this option\.", (ROOT / "docs/guide/logs.md").read_text(), re.MULTILINE)
    assert set(re.findall(r"`(\w+)`", said)) == has_it


@pytest.mark.parametrize("form", ["console", "json"])
def test_metrics_logs_in_the_format_that_was_asked_for(url: str, form: str, monkeypatch: pytest.MonkeyPatch):
    with Holdfast(url):
        pass
    done = CliRunner().invoke(commands, ["metrics", "--once", f"--log-format={form}", "--store", url])
    assert done.exit_code == 0, done.output
    monkeypatch.setattr(sys, "stderr", io.StringIO())
    logging.getLogger("holdfast.store").warning("the store does not answer")
    said = sys.stderr.getvalue()
    set_up(0)
    assert said.startswith('{"timestamp":' if form == "json" else "20")


PROGRAM = """
import logging
from holdfast import Pipeline

books = Pipeline("books")
SECRET = "password=" + "hunter22"


@books.stage(version="7", isolate={isolate!r}, max_attempts=1)
def work(item, ctx):
    ctx.log.warning("100%% of %s", item.key)
    logging.getLogger("mine").warning("said %s", SECRET, extra={{"pages": 3}})
    try:
        raise ValueError(SECRET)
    except ValueError:
        logging.getLogger("mine").exception("it failed")
"""
KEY = 'x"\n{"level":"forged"}'


def started(folder: Path, url: str, *args: str) -> subprocess.Popen[str]:
    environment = {**os.environ, "HOLDFAST_URL": url, "PYTHONPATH": str(ROOT)}
    return subprocess.Popen([sys.executable, *args], cwd=folder, env=environment, stderr=subprocess.PIPE, text=True)


def program_with(key: str, url: str, folder: Path, isolate: str | None = None) -> None:
    """Write the program, and add an item to its store."""
    (folder / "books.py").write_text(PROGRAM.format(isolate=isolate))
    with load(str(folder / "books.py"), url).open() as app:
        app.add("books", [key])


@pytest.mark.parametrize("isolate", [None, "process"])
def test_a_run_logs_one_event_per_line_as_json_with_the_keys_of_its_attempt(
    url: str, tmp_path: Path, isolate: str | None
):
    program_with(KEY, url, tmp_path, isolate)
    worker = started(tmp_path, url, "-m", "holdfast", "run", "--log-format=json", "-vv", "--name=me", "books.py")
    _, said = worker.communicate(timeout=PATIENCE_SECONDS)
    assert worker.returncode == 0, said
    assert "hunter22" not in said
    lines = [json.loads(line) for line in said.splitlines()]
    assert "forged" not in {line["level"] for line in lines}
    of_attempt = [line for line in lines if "holdfast.attempt" in line]
    usual = {
        "level": "WARNING",
        "holdfast.pipeline": "books",
        "holdfast.stage": "work",
        "holdfast.version": "7",
        "holdfast.worker": "me",
        "holdfast.item.key": KEY,
        "holdfast.attempt": 1,
    }
    own, other, failed = (
        {k: v for k, v in one.items() if k not in ("timestamp", "holdfast.lease")} for one in of_attempt
    )
    message = f"100% of {KEY}"
    assert own == {**usual, "logger": "holdfast.stage.books.work", "message": message}
    assert other == {**usual, "logger": "mine", "message": "said password=***", "pages": 3}
    trace = failed.pop("exception")
    assert failed == {**usual, "level": "ERROR", "logger": "mine", "message": "it failed"}
    assert trace.startswith("Traceback")
    assert trace.endswith("ValueError: password=***")


def test_processes_of_a_worker_log_in_the_format_that_was_asked_for(url: str, tmp_path: Path):
    program_with("page-1", url, tmp_path)
    worker = started(tmp_path, url, "-m", "holdfast", "worker", "--log-format=json", "--processes=1", "books.py")
    assert worker.stderr is not None
    lines = []
    for text in worker.stderr:
        lines.append(json.loads(text))
        if lines[-1]["message"] == "it failed":
            worker.send_signal(signal.SIGTERM)
    assert worker.wait(PATIENCE_SECONDS) == 0
    assert any(line.get("holdfast.item.key") == "page-1" for line in lines)


def test_the_program_for_structlog_on_the_page_prints_every_record_with_its_attempt(url: str, tmp_path: Path):
    [program] = [block for block in blocks(ROOT / "docs/guide/logs.md", "python") if "__main__" in block]
    (tmp_path / "pages.py").write_text(program)
    ran = started(tmp_path, url, "pages.py")
    _, said = ran.communicate(timeout=PATIENCE_SECONDS)
    assert ran.returncode == 0, said
    lines = {line["event"]: line for line in map(json.loads, said.splitlines())}
    assert lines["counted"]["words"] == 5
    for event, logger in (("counted", "pages"), ("a record of another library", "elsewhere")):
        assert lines[event]["logger"] == logger
        assert lines[event]["holdfast.item.key"] == "page-1"
        assert lines[event]["holdfast.stage"] == "count"
