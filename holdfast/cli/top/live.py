"""The loop of `top`: waits for keys, signals and answers, draws, and gives the terminal back."""

from __future__ import annotations

import os
import queue
import select
import signal
import sys
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack, suppress
from functools import lru_cache
from io import StringIO
from types import FrameType
from typing import Any

from rich.cells import cell_len
from rich.console import Console

from holdfast.app import Holdfast
from holdfast.cli import options
from holdfast.cli.top.controls import Controls
from holdfast.cli.top.frame import frame, prompt_line
from holdfast.cli.top.keyboard import REST_SECONDS, Keyboard
from holdfast.cli.top.polling import Facts, ItemFacts, Question, Reader, ask, is_expected
from holdfast.cli.top.screen import Screen, held_stderr
from holdfast.cli.top.view import View
from holdfast.signals import STOPS, caught

#: How often it is looked whether the store still owes an answer, and after what time that is said.
LOOK_SECONDS, SLOW_SECONDS = 1.0, 5.0
#: How long the end waits for a command that was given, and for an answer.
END_SECONDS, CLOSE_SECONDS = 5.0, 1.0
#: Beside those that `holdfast.signals` catches; and all that end it.
SIGNALS = (signal.SIGWINCH, signal.SIGTSTP, signal.SIGCONT, signal.SIGHUP, signal.SIGQUIT)
ENDS = (*STOPS, signal.SIGHUP, signal.SIGQUIT)


class Live:
    """`run` returns the number of the signal that has ended it, or 0."""

    def __init__(self, app: Holdfast, screen: Screen, facts: Facts, every_seconds: float) -> None:
        self._app, self._screen = app, screen
        self._view = View(facts)
        self._controls = Controls(self._view, self, options.user())
        self._keyboard = Keyboard()
        self._reader = Reader(app, every_seconds, self._answered)
        self._looks_at: Question = ask
        #: What other threads want done here, and signals; a byte in the pipe says that there is something.
        self._calls: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._signals: list[int] = []
        self._woken, self._wake = os.pipe()
        self._acting: threading.Thread | None = None
        self._ended_by: int | None = None
        screen.is_given_up = lambda: any(number in ENDS for number in self._signals)

    @property
    def is_acting(self) -> bool:
        """Whether a command that was given is still under way."""
        return self._acting is not None and self._acting.is_alive()

    def close(self) -> None:
        """Close the app, unless something is still asked or done with it: that ends with the process."""
        if not self.is_acting and self._reader.asking.acquire(timeout=CLOSE_SECONDS):
            self._app.close()

    def run(self) -> int:
        for end in (self._woken, self._wake):
            os.set_blocking(end, False)
        with ExitStack() as stack:
            stack.enter_context(caught(self._signalled))
            for number in SIGNALS:
                stack.callback(signal.signal, number, signal.signal(number, self._handle))
            stack.enter_context(held_stderr())
            stack.callback(self._reader.end)
            try:
                with self._screen:
                    self._reader.start()
                    while self._ended_by is None:
                        self._draw()
                        self._wait()
            except OSError:
                if not sys.stdout.isatty() or self._screen.is_given_up():
                    self._ended_by = self._ended_by or signal.SIGHUP
                else:
                    raise
            if self._acting is not None:
                self._acting.join(END_SECONDS)
        return self._ended_by or 0

    # What Controls needs ----------------------------------------------------------------------------------------------

    def look_at(self, question: Question) -> None:
        self._looks_at = question
        self._reader.look_at(question)

    def do(self, work: Callable[[Holdfast], Any], then: Callable[[Any], None]) -> None:
        if self.is_acting:
            self._view.message = "The last command is still under way."
            return
        self._view.message = "under way …"

        def run() -> None:
            try:
                result = work(self._app)
            except BaseException as error:
                failed = error
                self._call(lambda: self._failed(failed))
            else:
                self._call(lambda: self._done(then, result))

        self._acting = threading.Thread(target=run, name="holdfast-top-act", daemon=True)
        self._acting.start()

    def redraw(self) -> None:
        self._screen.forget()

    def leave(self) -> None:
        self._ended_by = 0

    # What happens -----------------------------------------------------------------------------------------------------

    def _wait(self) -> None:
        """Wait for the next thing to happen, and take note of it."""
        seconds = REST_SECONDS if self._keyboard.waits_for_rest else LOOK_SECONDS
        ready, _, _ = select.select([sys.stdin.fileno(), self._woken], [], [], seconds)
        if self._woken in ready:
            with suppress(BlockingIOError):
                os.read(self._woken, 4096)
        while self._signals:
            self._take_signal(self._signals.pop(0))
        while not self._calls.empty():
            self._calls.get()()
        if sys.stdin.fileno() in ready:
            data = os.read(sys.stdin.fileno(), 4096)
            if not data:
                self._ended_by = signal.SIGHUP
            self._press(self._keyboard.read(data))
        elif self._keyboard.waits_for_rest and not ready:
            self._press(self._keyboard.read(b""))
        asked_at = self._reader.asked_at
        if asked_at is not None and time.monotonic() - asked_at > SLOW_SECONDS:
            self._view.trouble = "The store has not answered yet: these numbers are old."

    def _press(self, keys: list[str]) -> None:
        for key in keys:
            self._controls.press(key)

    def _take_signal(self, number: int) -> None:
        if number == signal.SIGTSTP:
            self._suspend()
        elif number == signal.SIGCONT:
            # The shell may have had the terminal in the meantime.
            self._screen.enter()
        elif number == signal.SIGWINCH:
            self._screen.forget()
        else:
            self._ended_by = number

    def _suspend(self) -> None:
        """Stop, as control-Z asks for; goes on here when the shell says so. Never in the middle of a transaction: others would
        wait for its locks."""
        if self.is_acting:
            self._view.message = "The last command is still under way; suspend when it has ended."
            return
        idle = self._reader.asking.acquire(timeout=END_SECONDS)
        try:
            self._screen.leave()
            signal.signal(signal.SIGTSTP, signal.SIG_DFL)
            # To this thread: it does not go on before the whole process does.
            signal.pthread_kill(threading.get_ident(), signal.SIGTSTP)
            signal.signal(signal.SIGTSTP, self._handle)
            self._screen.enter()
        finally:
            if idle:
                self._reader.asking.release()

    def _done(self, then: Callable[[Any], None], result: Any) -> None:
        self._view.message = ""
        then(result)

    def _failed(self, error: BaseException) -> None:
        if not is_expected(error):
            raise error
        self._view.message = str(error)

    def _asked(self, question: Question, answer: Facts | ItemFacts | BaseException) -> None:
        """An answer of the reader. One to a question that nobody asks any more is of no interest."""
        if isinstance(answer, BaseException) and not is_expected(answer):
            raise answer
        if question is not self._looks_at:
            return
        if isinstance(answer, Facts):
            self._view.facts, self._view.trouble = answer, ""
        elif isinstance(answer, ItemFacts):
            self._view.item, self._view.trouble = answer, ""
        elif question is ask:
            self._view.trouble = str(answer)
        else:
            self._view.page, self._view.item, self._view.message = "overview", None, str(answer)
            self.look_at(ask)

    # Drawing ----------------------------------------------------------------------------------------------------------

    def _draw(self) -> None:
        width, height = self._screen.size
        console = _console(width)
        lines = []
        texts = frame(self._view, width, height, console)
        for text in texts:
            with console.capture() as captured:
                console.print(text, end="", no_wrap=True, overflow="ellipsis", crop=True)
            lines.append(captured.get())
        cursor = None
        if self._view.prompt is not None and height > 1:
            cursor = (min(cell_len(prompt_line(self._view).plain), width - 1), height - 2)
        self._screen.draw(lines, cursor)

    # Other threads, and signals ---------------------------------------------------------------------------------------

    def _answered(self, question: Question, answer: Facts | ItemFacts | BaseException) -> None:
        self._call(lambda: self._asked(question, answer))

    def _call(self, what: Callable[[], None]) -> None:
        self._calls.put(what)
        self._rouse()

    def _handle(self, number: int, frame: FrameType | None) -> None:
        self._signalled(number)

    def _signalled(self, number: int) -> None:
        self._signals.append(number)
        self._rouse()

    def _rouse(self) -> None:
        # A full pipe wakes as well.
        with suppress(BlockingIOError):
            os.write(self._wake, b"\0")


@lru_cache(maxsize=1)
def _console(width: int) -> Console:
    """Makes strings of lines, with as many colours as the terminal has, and none where NO_COLOR asks for that."""
    return Console(file=StringIO(), force_terminal=True, width=width, markup=False, highlight=False, emoji=False)
