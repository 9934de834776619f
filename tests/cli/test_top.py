"""`holdfast top` on a real pseudo-terminal: what it shows, what its keys do, and how it leaves the terminal."""

from __future__ import annotations

import os
import re
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from holdfast import Context, Holdfast, Item, Permanent, Pipeline
from holdfast.cli import options
from holdfast.cli.top.frame import frame
from holdfast.cli.top.keyboard import Keyboard
from holdfast.cli.top.polling import Facts, ItemFacts, Question, Reader, ask, pause_seconds
from holdfast.cli.top.screen import Screen
from holdfast.cli.top.view import View
from tests.cli.conftest import Commands
from tests.support.terminal import Terminal
from tests.support.terminal_main import FAILS_VARIABLE

pytestmark = pytest.mark.req("P17")

#: A key, and part of an error, that would change the title, clear the screen, and reverse what follows.
HOSTILE = "bad\x1b]0;title\x07\x1b[2J\u202e\x9b2J"
ESCAPE, CONTROL_C, CONTROL_Z = "\x1b", "\x03", "\x1a"
#: What styles a letter in colour, not only in weight.
COLOUR = re.compile(r"(?:^|;)(?:3[0-8]|4[0-8]|9[0-7]|10[0-7])(?:;|$)")

Open = Callable[..., Terminal]


def books(url: str, name: str = "books") -> Pipeline:
    """Two stages; keys that begin with `bad` can never work, and every other one costs a little."""
    books = Pipeline(name, store=url, resources={"gemini": {"budget_per_day": "5.00"}})

    @books.stage(resource="gemini")
    def extract(item: Item, ctx: Context) -> int:
        if item.key.startswith("bad"):
            raise Permanent(f"{item.key} has no pages {HOSTILE}")
        ctx.cost("0.25", "gemini")
        return 1

    @books.stage(after=extract)
    def chunk(item: Item, ctx: Context) -> int:
        return 1

    return books


@pytest.fixture
def shelf(url: str) -> str:
    """Two books that are done, two that failed, and one that waits; and a second pipeline with nothing in it."""
    pipeline = books(url)
    pipeline.add(["walden", "emma", "bad-1", HOSTILE])
    pipeline.run()
    pipeline.add(["late"])
    books(url, "magazines").add([])
    return url


@pytest.fixture
def top() -> Iterator[Open]:
    """Opens `holdfast top` on terminals, which are gone with the test."""
    with ExitStack() as stack:

        def begin(url: str, *arguments: str, columns: int = 80, lines: int = 24, **environment: str) -> Terminal:
            given = ["top", "--every", "200ms", *arguments]
            terminal = Terminal(given, {"HOLDFAST_URL": url, **environment}, columns=columns, lines=lines)
            return stack.enter_context(terminal)

        yield begin


def is_restored(terminal: Terminal) -> bool:
    """The first screen, its cursor, and the settings of the terminal are back."""
    screen = terminal.screen
    return not screen.is_second and screen.has_cursor and terminal.attributes == terminal.attributes_before


# Looking --------------------------------------------------------------------------------------------------------------


def test_a_frame_shows_the_numbers_of_the_store_and_follows_them(shelf: str, top: Open):
    terminal = top(shelf)
    terminal.wait_for_line("pipeline,", "stage", "waiting", "running", "failed", "done", "/min", "today")
    terminal.wait_for("gemini 0.50 of 5.00 today", "no living worker offers this stage", "No worker is alive")
    extract = next(line.split() for line in terminal.text.splitlines() if "extract" in line.split())
    assert extract[:5] == ["extract", "1", "0", "2", "2"]
    assert float(extract[5]) > 0
    assert "0.50 spent today" in terminal.text
    assert terminal.screen.is_second and not terminal.screen.has_cursor
    with Holdfast(shelf, create=False) as app:
        app.cancel(key="late", by="somebody")
    terminal.wait(lambda: any("cancelled" in line.split() for line in terminal.text.splitlines()))
    terminal.wait(lambda: "no living worker" not in terminal.text)
    terminal.type("q")
    assert terminal.exit_code() == 0
    assert is_restored(terminal)
    assert terminal.screen.strange == [] and terminal.screen.wrapped == 0


def test_once_prints_one_frame_and_so_does_a_command_without_a_terminal(shelf: str, capfd: pytest.CaptureFixture[str]):
    cli = Commands(shelf)
    said = [cli("top", *given).stdout for given in (["--once"], [])]
    for one in said:
        assert "\x1b" not in one
        assert ["extract", "1", "0", "2", "2"] in [line.split()[:5] for line in one.splitlines()]
        assert "budgets:" in one and "in the way" in one


def test_until_when_something_stands_in_the_way_is_not_cut_off(shelf: str):
    with Holdfast(shelf, create=False) as app:
        app.pause("books", reason="waits for the invoice of the provider and for Ada", until="90d", by="ada")
        view = View(ask(app))
    lines = [line.plain for line in frame(view, 80, 24, Console(width=80))]
    assert all(len(line) <= 80 for line in lines)
    whole = " ".join(line.strip() for line in lines)
    assert "waits for the invoice of the provider and for Ada, since 20" in whole
    assert re.search(r"until 20\d\d-\d\d-\d\dT\d\d:\d\d:\d\dZ; holdfast resume books", whole)


def test_a_terminal_that_cannot_be_drawn_on_gets_one_frame(shelf: str, top: Open):
    terminal = top(shelf, TERM="dumb")
    assert terminal.exit_code() == 0
    terminal.wait_for("spent today", "No worker is alive")
    assert "\x1b" not in terminal.received.decode()


def test_no_color_has_no_colour_and_without_it_there_is_some(shelf: str, top: Open):
    plain, coloured = top(shelf, NO_COLOR="1"), top(shelf)
    for terminal in (plain, coloured):
        terminal.wait_for("extract", "q quit")
        terminal.type("q")
        terminal.exit_code()
    assert [one for one in plain.screen.styles if COLOUR.search(one)] == []
    assert [one for one in coloured.screen.styles if COLOUR.search(one)]


def test_the_filter_shows_only_pipelines_with_a_text_in_their_name(shelf: str, top: Open):
    terminal = top(shelf)
    terminal.wait_for("magazines", "books")
    terminal.type("fmaga\n")
    terminal.wait(lambda: "only *maga*" in terminal.text and "  books" not in terminal.text)
    assert "magazines" in terminal.text
    terminal.type("f\n")
    terminal.wait_for("  books", "magazines")


@pytest.mark.fault(76)
def test_an_item_is_opened_with_why_and_its_stages_and_its_texts_cannot_steer_the_terminal(shelf: str, top: Open):
    with Holdfast(shelf, create=False) as app:
        [hostile] = [one.key for one in app.items(state="failed") if one.key.startswith("bad\x1b")]
        app.pause("books", reason=f"because {HOSTILE}", by="ada")
    terminal = top(shelf)
    terminal.wait_for("because bad\\x1b]0;title")
    terminal.type("iwalden\n")
    terminal.wait_for("extract: done", "chunk: done", "escape back")
    terminal.type(ESCAPE)
    terminal.wait_for("j/k select")
    terminal.type("ibad-1\n")
    terminal.wait_for("extract: failed", "bad-1 has no pages bad\\x1b]0;title\\x07", "holdfast retry")
    terminal.type(ESCAPE)
    terminal.wait_for("j/k select")
    terminal.type("inobody\n")
    terminal.wait_for("nobody", "j/k select")
    assert hostile == HOSTILE
    assert terminal.screen.strange == []


def test_help_lists_the_keys(shelf: str, top: Open):
    terminal = top(shelf)
    terminal.wait_for("? help")
    terminal.type("?")
    terminal.wait_for("keys and columns", "retry what has failed")
    terminal.type(ESCAPE)
    terminal.wait_for("j/k select")


def test_a_resize_draws_for_the_new_size(shelf: str, top: Open):
    terminal = top(shelf, columns=120, lines=40)
    terminal.wait_for("extract", "q quit", "No worker is alive")
    terminal.resize(60, 12)
    terminal.wait_for("extract", "q quit")
    # The line of keys is the last one of the smaller screen.
    terminal.wait(lambda: "q quit" in terminal.text.split("\n")[11])
    assert terminal.screen.wrapped == 0


@pytest.mark.parametrize("size", [(1, 1), (5, 2), (20, 3), (80, 4), (80, 24), (300, 100)])
def test_every_page_fits_every_size(shelf: str, size: tuple[int, int]):
    width, height = size
    with Holdfast(shelf, create=False) as app:
        view = View(ask(app))
        view.item = ItemFacts(app.why("bad-1"), app.show("bad-1"))
    console = Console(width=width)
    for page in ("overview", "item", "help"):
        view.page = page  # type: ignore[assignment]
        assert len(frame(view, width, height, console)) == height


# Acting ---------------------------------------------------------------------------------------------------------------


def test_pausing_and_resuming_ask_for_a_reason_and_are_recorded(shelf: str, top: Open):
    terminal = top(shelf)
    terminal.wait_for("p pause")
    terminal.type("p")
    terminal.wait_for("Pause books. Reason:")
    assert terminal.screen.has_cursor
    terminal.type("the API is down\n")
    terminal.wait_for("Pause books, because: the API is down?")
    terminal.type("n")
    terminal.wait_for("Nothing was done.")
    with Holdfast(shelf, create=False) as app:
        assert not app.status().pipeline("books").paused
        terminal.type("pthe API is down\n")
        terminal.wait_for("because: the API is down?")
        terminal.type("y")
        terminal.wait_for("books (paused)", "books is paused.", "p resume", "books: paused: the API is down")
        [paused] = app.events(event="paused")
        assert (paused.pipeline, paused.data["by"], paused.data["reason"]) == (
            "books",
            options.user(),
            "the API is down",
        )
        terminal.type("pit is back\ny")
        terminal.wait_for("books goes on.", "p pause")
        [resumed] = app.events(event="resumed")
        assert (resumed.data["by"], resumed.data["reason"]) == (options.user(), "it is back")
        assert not app.status().pipeline("books").paused


def test_a_retry_counts_asks_and_sends_back_what_has_failed_at_the_selected_stage(shelf: str, top: Open):
    terminal = top(shelf)
    terminal.wait_for_line(">", "books", "0.50")
    terminal.type("j")
    terminal.wait(lambda: any(line.split()[:2] == [">", "extract"] for line in terminal.text.splitlines()))
    terminal.type("r")
    terminal.wait_for("Retry 2 failed of books/extract. Reason:")
    terminal.type("pages were found\n")
    terminal.wait_for("Retry 2 failed of books/extract, because: pages were found?")
    with Holdfast(shelf, create=False) as app:
        assert app.status().pipeline("books").stage("extract").states["failed"] == 2
        terminal.type("y")
        terminal.wait_for("Action 1 has sent back 2")
        [action] = app.actions()
        assert (action.kind, action.by, action.reason) == ("retry", options.user(), "pages were found")
        assert app.status().pipeline("books").stage("extract").states == {"pending": 3, "done": 2}
    terminal.type("r")
    terminal.wait_for("Nothing has failed at books/extract.")


def test_escape_gives_up_what_is_being_asked(shelf: str, top: Open):
    terminal = top(shelf)
    terminal.wait_for("p pause")
    terminal.type(f"pno\x7f\x7fyes{ESCAPE}")
    terminal.wait_for("Nothing was done.")
    terminal.type("q")
    assert terminal.exit_code() == 0
    with Holdfast(shelf, create=False) as app:
        assert not app.events(event="paused")


# The terminal ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGQUIT, signal.SIGHUP])
def test_a_signal_ends_it_and_the_terminal_is_as_before(shelf: str, top: Open, number: signal.Signals):
    terminal = top(shelf)
    pid = terminal.pid()
    terminal.wait_for("q quit")
    assert terminal.attributes != terminal.attributes_before
    if number == signal.SIGINT:
        terminal.type(CONTROL_C)
    else:
        os.kill(pid, number)
    assert terminal.exit_code() == 128 + number
    assert is_restored(terminal)


def test_after_an_error_the_terminal_is_as_before_and_the_error_is_said(shelf: str, top: Open):
    terminal = top(shelf, **{FAILS_VARIABLE: "2"})
    assert terminal.exit_code() == 1
    assert is_restored(terminal)
    assert "RuntimeError: the frame broke" in terminal.text


def test_control_z_gives_the_terminal_back_until_the_shell_goes_on(shelf: str, top: Open):
    terminal = top(shelf)
    terminal.wait_for("q quit")
    terminal.type(CONTROL_Z)
    terminal.wait_for("[stopped]")
    assert is_restored(terminal)
    terminal.type("F\n")
    terminal.wait_for("extract", "q quit")
    assert terminal.screen.is_second and not terminal.screen.has_cursor
    terminal.type("q")
    assert terminal.exit_code() == 0
    assert is_restored(terminal)


def test_only_lines_that_have_changed_are_sent():
    reads, writes = os.pipe()
    try:
        screen = Screen(reads, writes)
        screen.draw(["one", "two", "three"])
        os.read(reads, 4096)
        screen.draw(["one", "2", "three"])
        assert os.read(reads, 4096) == b"\x1b[2H\x1b[K2\x1b[?25l"
        screen.draw(["one", "2", "three"])
        screen.draw(["one"])
        assert os.read(reads, 4096) == b"\x1b[2H\x1b[K\x1b[3H\x1b[K\x1b[?25l"
    finally:
        os.close(reads)
        os.close(writes)


def test_keys_are_read_whole_however_their_bytes_arrive():
    keyboard = Keyboard()
    assert keyboard.read(b"\x1b[A\x1bOBj\r\x7f") == ["up", "down", "j", "enter", "backspace"]
    assert keyboard.read("é".encode()[:1]) == []
    assert keyboard.read("é".encode()[1:]) == ["é"]
    assert keyboard.read(b"\x1b") == [] and keyboard.waits_for_rest
    assert keyboard.read(b"[") == [] and keyboard.read(b"B") == ["down"]
    assert keyboard.read(b"\x1b") == [] and keyboard.read(b"") == ["escape"]
    assert keyboard.read(b"\x1bq") == ["escape", "q"]
    assert keyboard.read(b"\x1b[15~\x00\x02") == [] and not keyboard.waits_for_rest


# Modesty --------------------------------------------------------------------------------------------------------------


def test_the_pause_after_a_question_is_twenty_times_what_it_took():
    assert pause_seconds(2.0, 0.01) == 2.0
    assert pause_seconds(2.0, 0.5) == 10.0


def test_one_question_is_asked_at_a_time_and_the_next_one_only_after_the_pause(shelf: str):
    asked = threading.Semaphore(0)
    told: list[Any] = []
    first = threading.Event()

    def question(app: Holdfast) -> Facts:
        asked.release()
        return ask(app)

    def tell(question: Question, answer: Any) -> None:
        told.append(answer)
        first.set()

    with Holdfast(shelf, create=False) as app:
        # Nothing is asked within an hour, but for what a person asks for.
        reader = Reader(app, 3600.0, tell)
        reader.look_at(question)
        reader.start()
        assert first.wait(60)
        assert asked.acquire(blocking=False) and not asked.acquire(blocking=False)
        assert isinstance(told[0], Facts)
        first.clear()
        reader.look_at(question)
        assert first.wait(60)
        assert len(told) == 2
        reader.end()
        assert reader.asking.acquire(timeout=60)


def test_every_must_be_a_length_of_time_above_zero(lite: Commands, tmp_path: Path):
    books(lite.url).add(["walden"])
    assert "above zero" in lite("top", "--every", "0", code=2).stderr
    assert "not a length of time" in lite("top", "--every", "soon", code=2).stderr
