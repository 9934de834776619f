"""What keys do. Everything that changes something asks first, with the count where there are many."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from typing import Any, Protocol

from holdfast.answers.overview import COLUMNS
from holdfast.answers.text_tables import counted
from holdfast.app import Holdfast
from holdfast.cli.top.polling import Question, about_item, ask
from holdfast.cli.top.view import Prompt, Row, View

#: How far the keys for a page go.
PAGE = 10


class Loop(Protocol):
    """What the keys need of the loop that reads them."""

    def look_at(self, question: Question) -> None:
        """Ask this from now on."""
        ...

    def do(self, work: Callable[[Holdfast], Any], then: Callable[[Any], None]) -> None:
        """Do this in the background, and then go on with its result."""
        ...

    def redraw(self) -> None: ...
    def leave(self) -> None: ...


class Controls:
    def __init__(self, view: View, loop: Loop, user: str) -> None:
        self._view, self._loop, self._user = view, loop, user
        self._keys: dict[str, Callable[[], None]] = {
            "q": loop.leave,
            "?": self._help,
            "escape": self._back,
            "backspace": self._back,
            "redraw": loop.redraw,
            **{key: lambda: view.move(-1) for key in ("up", "k")},
            **{key: lambda: view.move(1) for key in ("down", "j")},
            "page up": lambda: view.move(-PAGE),
            "page down": lambda: view.move(PAGE),
        }
        self._on_overview: dict[str, Callable[[], None]] = {
            "f": self._filter,
            "p": self._pause_or_resume,
            "r": self._count_and_retry,
            "i": self._open,
            "enter": self._open,
        }

    def press(self, key: str) -> None:
        if self._view.prompt is not None:
            self._answer(self._view.prompt, key)
            return
        self._view.message = ""
        keys = self._keys | self._on_overview if self._view.page == "overview" else self._keys
        keys.get(key, lambda: None)()

    def _answer(self, prompt: Prompt, key: str) -> None:
        view = self._view
        if prompt.is_yes_or_no:
            view.prompt = None
            if key in ("y", "Y"):
                prompt.then("")
            else:
                view.message = "Nothing was done."
        elif key == "escape":
            view.prompt, view.message = None, "Nothing was done."
        elif key == "enter":
            view.prompt = None
            prompt.then(prompt.typed.strip())
        else:
            view.prompt = prompt.with_key(key)

    # Looking ----------------------------------------------------------------------------------------------------------

    def _help(self) -> None:
        self._view.page, self._view.scrolled = "help", 0

    def _back(self) -> None:
        if self._view.page != "overview":
            self._loop.look_at(ask)
        self._view.page, self._view.item = "overview", None

    def _filter(self) -> None:
        def then(typed: str) -> None:
            self._view.part_of_name = typed

        self._view.prompt = Prompt("Only pipelines with this in their name (nothing for all):", then)

    def _open(self) -> None:
        row = self._selected()
        if row is None:
            return

        def then(key: str) -> None:
            if key:
                self._view.page, self._view.item, self._view.scrolled = "item", None, 0
                self._loop.look_at(about_item(key, row[0]))

        self._view.prompt = Prompt(f"Key of an item of {row[0]}:", then)

    # Acting -----------------------------------------------------------------------------------------------------------

    def _pause_or_resume(self) -> None:
        pipeline = self._view.pipeline
        if self._selected() is None or pipeline is None:
            return
        name, verb = pipeline.name, "Resume" if pipeline.paused else "Pause"

        def act(app: Holdfast, reason: str) -> str:
            if verb == "Pause":
                app.pause(name, reason=reason, by=self._user)
                return f"{name} is paused."
            return f"{name} {'goes on' if app.resume(name, reason=reason, by=self._user) else 'was not paused'}."

        self._confirm(f"{verb} {name}", lambda reason: self._loop.do(lambda app: act(app, reason), self._tell))

    def _count_and_retry(self) -> None:
        row = self._selected()
        if row is None:
            return
        pipeline, stage = row
        which: dict[str, Any] = {"pipeline": pipeline, "stage": stage, "states": COLUMNS["failed"]}
        which["request"] = secrets.token_hex(16)

        def counted_up(counts: Any) -> None:
            if self._view.prompt is not None or self._view.page != "overview":
                # The person has gone on to something else: what is typed there must not become an answer to this.
                self._view.message = "Nothing was retried."
                return
            n = sum(counts.values())
            where = pipeline if stage is None else f"{pipeline}/{stage}"
            if not n:
                self._view.message = f"Nothing has failed at {where}."
                return
            many = f"{n:,}{'+' if counts.more else ''}"
            what = f"Retry {many} failed of {where}"
            self._confirm(what, lambda reason: self._loop.do(lambda app: act(app, reason), self._tell))

        def act(app: Holdfast, reason: str) -> str:
            counts = app.retry(by=self._user, reason=reason, **which)
            if counts.action is None:
                return "Nothing matches any more: it has changed since it was counted."
            done = app.continue_action(counts.action)
            return f"Action {counts.action} has sent back {sum(done.values()):,} ({counted(done)})."

        self._loop.do(lambda app: app.retry(dry_run=True, **which), counted_up)

    def _confirm(self, what: str, then: Callable[[str], None]) -> None:
        """Ask for a reason, and then whether it is meant."""

        def sure(reason: str) -> None:
            because = f", because: {reason}" if reason else ""
            self._view.prompt = Prompt(f"{what}{because}?", lambda _: then(reason), is_yes_or_no=True)

        self._view.prompt = Prompt(f"{what}. Reason:", sure)

    def _tell(self, message: str) -> None:
        self._view.message = message
        if self._view.page == "overview":
            self._loop.look_at(ask)

    def _selected(self) -> Row | None:
        row = self._view.selected
        if row is None:
            self._view.message = "No pipeline is selected."
        return row
