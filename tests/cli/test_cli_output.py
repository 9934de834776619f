"""What is printed cannot steer a terminal, and is the same everywhere."""

from __future__ import annotations

import json
import logging
import os
import re
from collections.abc import Callable, Iterator
from decimal import Decimal
from typing import Any

import pytest

from holdfast import Holdfast
from holdfast.answers import StageStatus, Timings
from holdfast.answers.text_tables import iso, to_the_second
from holdfast.answers.units import instant
from holdfast.cli.logs import set_up
from holdfast.cli.output import as_json, printable
from holdfast.program_file import load
from holdfast.progress import Pace, StageProgress
from holdfast.worker import Settings

UTC = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z")

EVIL = "a\x1b[2J\x9b31m\r\n[red]b[/red]\u202e\u2028c\x7f"


@pytest.mark.req("V12")
def test_control_characters_are_written_out() -> None:
    assert printable(EVIL) == r"a\x1b[2J\x9b31m\r\n[red]b[/red]\u202e\u2028c\x7f"
    assert printable("Émile 本 😀") == "Émile 本 😀"
    assert printable("\ud800") == r"\ud800"


@pytest.mark.req("V12")
def test_json_is_plain_ascii_and_comes_back_unchanged() -> None:
    text = as_json({"é": EVIL})
    assert text.isascii()
    assert all(char.isprintable() or char == "\n" for char in text)
    assert json.loads(text) == {"é": EVIL}


def test_times_are_utc_and_exact() -> None:
    assert iso(instant(1_800_000_000_000_001)) == "2027-01-15T08:00:00.000001Z"
    assert to_the_second(instant(1_800_000_000_999_999)) == "2027-01-15T08:00:00Z"
    assert to_the_second(None) == "-"


@pytest.mark.req("V12")
def test_keys_errors_and_data_cannot_steer_the_terminal(cli: Any, write: Callable[[str, str], str]) -> None:
    """No control character of an item reaches the terminal, in any command's words, and markup is only text."""
    text = """
from holdfast import Permanent, Pipeline
evil = Pipeline("evil")

@evil.stage()
def spoil(item, ctx):
    raise Permanent(item.key)
"""
    file = write("evil.py", text)
    with Holdfast(cli.url) as app:
        from holdfast.program_file import load

        app.pipelines = tuple(load(file, None).specs)
        app.add("evil", [{"key": EVIL, "note": EVIL}])
    done = cli.process("run", file)
    assert done.returncode == 3
    said = [done.stdout, done.stderr]
    for args in (
        ["status"],
        ["items"],
        ["items", "--state", "failed"],
        ["show", EVIL],
        ["why", EVIL],
        ["events"],
        ["show", EVIL, "--json"],
        ["events", "--json"],
        ["retry", "--key", EVIL, "--reason", EVIL],
        ["show", EVIL + "x"],
    ):
        result = cli(*args, code=2 if args[-1] == EVIL + "x" else 0)
        said += [result.stdout, result.stderr]
    for text in said:
        assert all(char.isprintable() or char == "\n" for char in text)
    assert "[red]b[/red]" in said[0]


def test_log_lines_cannot_be_forged(capsys: pytest.CaptureFixture[str]) -> None:
    set_up(0)
    logging.getLogger("holdfast.test").warning("item %s", EVIL)
    line = capsys.readouterr().err
    assert line.endswith("\n")
    assert line[:-1].isprintable()


def test_a_reader_that_leaves_early_is_no_error_message(cli: Any, books: str) -> None:
    """`holdfast items | head -1` ends quietly."""
    cli("add", books, *(f"book-{n}" for n in range(2000)))
    reads, writes = os.pipe()
    process = cli.start("items", "--limit", "2000", stdout=writes, anew=True)
    os.close(writes)
    assert os.read(reads, 2)
    os.close(reads)
    _, said = process.communicate(timeout=30)
    assert process.returncode == 141
    assert "Error" not in said and "Exception" not in said and "holdfast:" not in said


def test_an_answer_that_cannot_be_written_is_an_error(lite: Any, books: str) -> None:
    lite("add", books, "one")
    with open("/dev/full", "w") as full:
        process = lite.start("items", stdout=full, anew=True)
        _, said = process.communicate(timeout=30)
    assert process.returncode == 1
    assert said == "holdfast: OSError: [Errno 28] No space left on device\n"


def test_a_terminal_of_few_characters_gets_escapes(lite: Any, books: str) -> None:
    lite("add", books, "本")
    done = lite.process("items", env={"PYTHONIOENCODING": "latin-1:strict"}, anew=True)
    assert done.returncode == 0
    assert "\\u672c" in done.stdout


def test_an_unexpected_error_is_one_line_and_its_traceback_only_with_v(lite: Any, books: str, monkeypatch: Any) -> None:
    lite("add", books, "one")

    def broken(*_: object) -> None:
        raise RuntimeError("a bug\nof two lines")

    monkeypatch.setattr(Holdfast, "status", broken)
    result = lite("status", code=1)
    assert result.stderr.startswith("holdfast: RuntimeError: a bug of two lines (not expected")
    assert result.stderr.count("\n") == 1
    with pytest.raises(AssertionError, match="Traceback"):
        lite("status", "-v", code=1)


SHOP = """
from holdfast import Permanent, Pipeline, RateLimited, RetryLater

shop = Pipeline("shop", resources={"api": {"rate": "1000/s", "budget": "9"}})


@shop.stage(resource="api", estimate="0.25")
def buy(item, ctx):
    if item.key == "later":
        return RetryLater(after=9999)
    if item.key == "limited":
        raise RateLimited(3000, "slow down")
    if item.key == "bad":
        raise Permanent("torn")
    ctx.cost("0.25", resource="api")
    ctx.once("call", lambda: 1, cost="0.05")


@shop.stage(after=buy, max_attempts=1)
def sell(item, ctx):
    raise ValueError("nobody wants it")
"""

ANSWERS = [
    ["status"],
    ["items"],
    ["items", "--state", "retry_later"],
    ["items", "--state", "failed"],
    ["events"],
    ["errors"],
    ["costs"],
    ["limits"],
    ["doctor"],
    ["show", "good"],
    ["show", "later"],
    ["why", "good"],
    ["why", "later"],
    ["why", "limited"],
]


def bare(value: Any, path: str = "") -> Iterator[str]:
    """Where an answer has a number that must be an instant: microseconds of this century."""
    if isinstance(value, dict):
        for name, one in value.items():
            yield from bare(one, f"{path}.{name}")
    elif isinstance(value, list):
        for one in value:
            yield from bare(one, f"{path}[]")
    elif isinstance(value, int) and 10**15 < value < 4 * 10**15:
        yield path


def test_no_answer_has_bare_microseconds_and_amounts_are_texts(cli: Any, write: Callable[[str, str], str]) -> None:
    shop = write("shop.py", SHOP)
    cli("add", shop, "good", "later", "bad", "limited")
    with Holdfast(cli.url, load(shop, None).specs, resources=load(shop, None).resources) as app:
        worker = app.worker(Settings(concurrency=1, grace_seconds=0.1, poll_seconds=0.1))
        worker.run(on_tick=lambda: worker.stop() if app.events(event="cooled_down") else None, tick_seconds=0.05)
        app.pause("shop", until="2h", reason="for a while")
        app.pause("api", until="1h", resource=True)
    for command in ANSWERS:
        assert list(bare(cli.json(*command))) == [], command
    [api] = cli.json("limits")
    assert api["spent"] == str(Decimal(api["spent"]))
    assert all(UTC.fullmatch(api[name]) for name in ("cool_until", "paused_until"))
    [shop_] = cli.json("status")["pipelines"]
    assert UTC.fullmatch(shop_["paused_until"]) and UTC.fullmatch(shop_["paused_at"])
    assert all(one["held"] is None or UTC.fullmatch(one["held"]["until"]) for one in shop_["stages"])
    [snoozed] = cli.json("events", "--event", "snoozed", "--key", "later")
    assert UTC.fullmatch(snoozed["data"]["due_at"])
    assert f"due_at={snoozed['data']['due_at']}" in cli("events", "--event", "snoozed").stdout
    assert f"due_at={snoozed['data']['due_at']}" in cli("show", "later").stdout


def test_tables_fit_a_narrow_terminal(
    cli: Any, write: Callable[[str, str], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    shop = write("shop.py", SHOP)
    cli("add", shop, "good", "a key that is longer than the terminal is wide, and then some more")
    with Holdfast(cli.url, load(shop, None).specs, resources=load(shop, None).resources) as app:
        app.run()
    for command in (
        ["status"],
        ["items"],
        ["items", "--state", "exhausted"],
        ["costs"],
        ["costs", "--by", "item,day,stage"],
    ):
        monkeypatch.delenv("COLUMNS", raising=False)
        whole = cli(*command).stdout
        monkeypatch.setenv("COLUMNS", "60")
        narrow = cli(*command).stdout
        assert max(map(len, narrow.splitlines())) <= 60, narrow
        assert len(narrow.splitlines()) == len(whole.splitlines())
    assert "exhausted" in cli("items", "--state", "exhausted").stdout


def test_a_worker_shows_what_holdfast_does_and_not_what_libraries_do() -> None:
    try:
        for verbosity, shown in ((0, []), (1, ["holdfast"]), (2, ["holdfast", "library"])):
            set_up(verbosity)
            assert logging.getLogger("library").isEnabledFor(logging.INFO) is ("library" in shown)
            assert logging.getLogger("holdfast.worker").isEnabledFor(logging.INFO) is ("holdfast" in shown)
    finally:
        set_up(0)


def counted(states: dict[str, int]) -> StageStatus:
    """A stage of which nothing but its counts is known."""
    return StageStatus(
        "extract", "1", (), states, 0, Timings.of({"count": 0}), False, (), None, None, False, None, None, None
    )


def test_progress_foretells_how_long_a_stage_takes_at_the_pace_of_this_run() -> None:
    def stage(done: int, total: int = 1000) -> StageProgress:
        return StageProgress("books", counted({"done": done, "pending": total - done}), total)

    pace = Pace()
    seen = []
    for now, done in ((0.0, 400), (10.0, 400), (20.0, 500), (30.0, 1000)):
        one = stage(done)
        pace.foretell([one], now)
        seen.append(str(one).partition("waiting")[2])
    assert seen == ["", "", ", about 1 m 40 s left", ""]


def test_progress_tells_what_this_run_has_spent_and_what_is_on_hold() -> None:
    pace = Pace()
    pace.note_money({"books/extract": Decimal("0.4")})
    stage = StageProgress("books", counted({"done": 2, "on_hold": 3}), 5)
    pace.foretell([stage], 1.0)
    assert str(stage) == "books/extract: 2 done, 3 on hold"
    pace.note_money({"books/extract": Decimal("1.2"), "books/chunk": Decimal("0.000005")})
    pace.foretell([stage], 2.0)
    assert str(stage) == "books/extract: 2 done, 3 on hold, 0.80 spent"
