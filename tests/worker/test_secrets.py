"""What a handler lets slip is not kept and not shown: no key and no password in events, outcomes, answers, logs."""

from __future__ import annotations

import json
import logging
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from holdfast import Context, Item, Permanent, Pipeline, RetryLater, Skip
from holdfast.cli import commands
from holdfast.model.log_lines import CleanRecords
from holdfast.model.redact import MASK, forget_secrets, remember_secret
from tests.support.bench import QUICK, Bench, Ran
from tests.support.mother import Piped
from tests.support.processes import wait_for

pytestmark = [pytest.mark.req("V12"), pytest.mark.fault(82)]

# Put together here, so that no text of this file looks like the key of somebody.
KEY = "sk-" + "proj-" + "Ab3dEf6hIj9lMn2p"
PASSWORD = "hunter22"
TOLD = "open-sesame"
SECRETS = (KEY, PASSWORD, TOLD)
LEAK = f"401 for {KEY} at postgresql://me:{PASSWORD}@db/books, told {TOLD}"


@pytest.fixture(autouse=True)
def _one_secret_is_told() -> Iterator[None]:
    remember_secret(TOLD)
    yield
    forget_secrets()


def fail(item: Item, ctx: Context) -> Any:
    raise ValueError(LEAK)


def fail_for_good(item: Item, ctx: Context) -> Any:
    raise Permanent(LEAK)


def fail_because_of_another(item: Item, ctx: Context) -> Any:
    try:
        raise KeyError(LEAK)
    except KeyError as error:
        raise RuntimeError("it did not work") from error


def skip(item: Item, ctx: Context) -> Any:
    return Skip(LEAK)


def fail_in_the_effect(item: Item, ctx: Context) -> Any:
    def effect(connection: Any) -> None:
        raise ValueError(LEAK)

    ctx.effect(effect)
    return {}


ACTS = {act.__name__: act for act in (fail, fail_for_good, fail_because_of_another, skip, fail_in_the_effect)}


def leaking(act: str, **settings: Any) -> Pipeline:
    pipeline = Pipeline("p")
    pipeline.stage(name="work", max_attempts=2, backoff=QUICK, **settings)(ACTS[act])
    return pipeline


def everything(ran: Ran, key: str = "x") -> str:
    """All that the library answers."""
    app = ran.app
    answers = [
        app.status(),
        app.show(key),
        app.why(key),
        app.history(key),
        app.items(),
        app.events(most=1000),
        app.workers(),
        app.items(stage="work"),
    ]
    return json.dumps([answer.json() for answer in answers])


def stored(ran: Ran) -> str:
    """All that lies in the tables, but the items."""
    found = ""
    for table, columns in {
        "events": "data",
        "outcomes": "error, result",
        "delayed": "error",
        "workers": "facts",
    }.items():
        text = f"SELECT {columns} FROM holdfast_{table}"
        found += repr(ran.app.store.read(lambda tx, text=text: _run(tx, text)))
    return found


def _run(tx: Any, text: str) -> list[Any]:
    driver = tx.store.driver
    return list(driver.run(driver.dialect.render(text, text), {}))


def asked(url: str, *args: str, code: int | None = 0) -> str:
    """All that a command prints."""
    result = CliRunner().invoke(commands, list(args), env={"HOLDFAST_URL": url}, prog_name="holdfast")
    assert code is None or result.exit_code == code, result.output
    return result.output + result.stderr


QUESTIONS = (
    ("status",),
    ("show", "x"),
    ("why", "x"),
    ("events",),
    ("items",),
    ("items", "--stage", "work"),
    ("doctor",),
)


def assert_clean(text: str) -> None:
    for secret in SECRETS:
        assert secret not in text, text[max(0, text.find(secret) - 200) :][:500]


@pytest.mark.parametrize("act", ACTS)
def test_a_secret_in_what_a_handler_says_is_neither_kept_nor_shown(run: Bench, url: str, act: str):
    ran = run(leaking(act), ["x"])
    assert MASK in stored(ran)
    assert_clean(stored(ran))
    assert_clean(everything(ran))
    for question in QUESTIONS:
        assert_clean(asked(url, *question))
        assert_clean(asked(url, *question, "--json"))


@pytest.mark.parametrize("how", [{"isolate": "process"}, {"batch": 3}], ids=str)
@pytest.mark.parametrize("database", ["sqlite"], indirect=True)
def test_a_handler_that_runs_otherwise_lets_nothing_slip_either(run: Bench, how: dict[str, Any]):
    ran = run(leaking("fail_for_good", **how), ["x"])
    assert MASK in stored(ran)
    assert_clean(stored(ran) + everything(ran))


def test_the_reason_of_a_snooze_and_a_note_of_progress_are_clean_while_they_stand(run: Bench, url: str):
    """They are shown as long as the work is open."""
    pipeline = Pipeline("p")
    noted = False

    @pipeline.stage()
    def work(item: Item, ctx: Context) -> Any:
        nonlocal noted
        if item.key == "x":
            return RetryLater(after="1h", reason=LEAK)
        ctx.progress(1, 2, LEAK)
        noted = True
        wait_for(lambda: ctx.stopping)
        return {}

    with run.serving(pipeline, ["x", "y"], lease_seconds=0.5) as (_, ran):
        wait_for(lambda: noted and ran.stage("x", "work").state == "retry_later")
        wait_for(lambda: any(one.progress for one in ran.app.workers()))
        told = stored(ran) + everything(ran) + everything(ran, "y")
        told += "".join(asked(url, *question) for question in (*QUESTIONS, ("why", "y"), ("show", "y")))
    assert MASK in told
    assert_clean(told)


def test_a_secret_in_the_data_of_an_item_reaches_its_handler_and_nobody_else(run: Bench, url: str):
    pipeline = Pipeline("p")
    headers = {"Authorization": f"Bearer {PASSWORD}", "Accept": "text/html"}

    @pipeline.stage()
    def work(item: Item, ctx: Context) -> Any:
        assert item.data["headers"] == headers
        return {"sent": item.data["headers"]}

    ran = run(pipeline, [{"key": "x", "headers": headers}])
    assert ran.result("x", "work") == {"sent": headers}
    for question in QUESTIONS:
        assert_clean(asked(url, *question))
        assert_clean(asked(url, *question, "--json"))
    assert "text/html" in asked(url, "show", "x")


def test_logs_are_clean_through_the_filter(run: Bench, caplog: pytest.LogCaptureFixture):
    pipeline = Pipeline("p")

    @pipeline.stage(max_attempts=1)
    def work(item: Item, ctx: Context) -> Any:
        ctx.log.warning("sending %s", LEAK)
        try:
            raise ValueError(LEAK)
        except ValueError:
            logging.getLogger("mine").exception("it failed")
        return {}

    caplog.handler.addFilter(found := CleanRecords())
    caplog.set_level(logging.DEBUG)
    try:
        run(pipeline, ["x"])
    finally:
        caplog.handler.removeFilter(found)
    assert "ValueError: 401 for ***" in caplog.text
    assert_clean("".join(line for line in caplog.text.splitlines(keepends=True) if "raise ValueError" not in line))


LEAKY = f'''
import logging
from holdfast import Backoff, Permanent, Pipeline

books = Pipeline("books")
LEAK = " ".join(["{LEAK.split()[0]}", "for", "sk-" + "proj-" + "Ab3dEf6hIj9lMn2p", "password=" + "hunter22"])


@books.stage(max_attempts=2, backoff=Backoff(first_seconds=0.01, most_seconds=0.02))
def work(item, ctx):
    ctx.log.warning("sending %s", LEAK)
    try:
        raise ValueError(LEAK)
    except ValueError:
        logging.getLogger("mine").exception("it failed")
    raise ValueError(LEAK)
'''


def process(url: str, folder: Path, *args: str) -> subprocess.CompletedProcess[str]:
    process = Piped("holdfast.cli", args, {**os.environ, "HOLDFAST_URL": url}, folder=folder)
    said, errors = process.communicate(timeout=60)
    return subprocess.CompletedProcess(args, process.wait(), said, errors)


def test_a_run_logs_and_prints_no_secret(url: str, tmp_path: Path):
    (tmp_path / "leaky.py").write_text(LEAKY)
    assert process(url, tmp_path, "add", "leaky.py", "x").returncode == 0
    ended = process(url, tmp_path, "run", "leaky.py", "-vv")
    assert ended.returncode == 3, ended.stderr
    assert f"ValueError: 401 for {MASK}" in ended.stderr
    assert_clean(ended.stdout + ended.stderr)


def test_a_file_that_fails_to_import_is_told_without_its_secret(url: str, tmp_path: Path):
    (tmp_path / "broken.py").write_text(
        'raise RuntimeError("cannot reach postgresql://me:" + "hunter" + "22@db/books")\n'
    )
    for flags in ((), ("-v",)):
        ended = process(url, tmp_path, "run", "broken.py", *flags)
        assert ended.returncode == 4
        assert MASK in ended.stderr
        assert_clean(ended.stdout + ended.stderr)


@pytest.mark.parametrize("database", ["sqlite"], indirect=True)
@pytest.mark.parametrize(
    "address", ["postgresql://me:{}@127.0.0.1:1/books", "postgresql://me:{}@[/books", "mysql://me:{}@db/x"]
)
def test_an_address_that_leads_nowhere_is_told_without_its_password(url: str, tmp_path: Path, address: str):
    for flags in ((), ("-vv",)):
        ended = process(address.format(PASSWORD), tmp_path, "status", *flags)
        assert ended.returncode != 0
        assert_clean(ended.stdout + ended.stderr)


def test_the_password_of_the_store_is_a_secret_wherever_it_turns_up(url: str, database: str):
    """The address is all that the store was given; a driver, or user code, may repeat the password anywhere."""
    if database == "postgres":
        head, _, rest = url.partition("://")
        user, _, place = rest.rpartition("@")
        url = f"{head}://{user.partition(':')[0] or 'postgres'}:{PASSWORD}@{place}"
    else:
        remember_secret(PASSWORD)
    pipeline = Pipeline("p")

    @pipeline.stage(max_attempts=1)
    def work(item: Item, ctx: Context) -> Any:
        raise ValueError(f"the server said: {PASSWORD} is wrong")

    bench = Bench(url)
    try:
        ran = bench(pipeline, ["x"])
        assert f"the server said: {MASK} is wrong" in everything(ran)
        assert_clean(stored(ran) + everything(ran))
    finally:
        bench.close()


FORGED = "x\n2026-01-01T00:00:00Z ERROR holdfast.worker: forged"
NOISY = """
import logging
from holdfast import Pipeline

books = Pipeline("books")


@books.stage(max_attempts=1)
def work(item, ctx):
    ctx.log.warning("100%% of %s", item.key)
    logging.getLogger("mine").warning("said " + item.key)
    try:
        raise ValueError(item.key)
    except ValueError:
        ctx.log.exception("it failed")
    raise ValueError(item.key)
"""


def test_a_line_feed_in_a_key_a_name_or_a_message_forges_no_line_of_the_log(url: str, tmp_path: Path):
    (tmp_path / "noisy.py").write_text(NOISY)
    key = FORGED + "%s"
    assert process(url, tmp_path, "add", "noisy.py", key).returncode == 0
    ended = process(url, tmp_path, "run", "noisy.py", "-vv", "--name", FORGED)
    assert ended.returncode == 3, ended.stderr
    lines = [line for line in ended.stderr.splitlines() if "forged" in line]
    assert not [line for line in lines if line.startswith("2026-01-01")]
    assert any("100% of x" in line and "does not fit" not in line for line in lines)
    assert any("worker x" in line and "offers 1 stages" in line for line in lines)
    assert any("Traceback" in line and "ValueError: x" in line for line in lines)
