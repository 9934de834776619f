"""The tutorial of examples/newsroom works as it is printed: every command, one after another, in a reader's folder."""

from __future__ import annotations

import contextlib
import io
import os
import re
import shlex
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from functools import cached_property
from operator import methodcaller
from pathlib import Path

import pytest
from click.testing import CliRunner

from examples.newsroom import __main__ as newsroom
from examples.newsroom.fakes.commands import ask_alerts, ask_control
from holdfast import Holdfast
from holdfast.cli import commands
from holdfast.model.states import OPEN
from tests.docs import test_guides as guides
from tests.examples.newsroom_scene import EXAMPLE, soon
from tests.examples.newsroom_workers import the_workers
from tests.support.mother import ROOT

README = EXAMPLE / "README.md"
#: A smaller paper than the reader's.
PAGES = "40"
LOCAL = "http://127.0.0.1:8050"


worker_started = methodcaller("events", event="worker_started")
breaker_opened = methodcaller("events", event="breaker_opened")


def steps() -> list[tuple[str, list[str]]]:
    """Every command of the page in order, with the lines that it is said to print, if there are any."""
    found: list[tuple[str, list[str]]] = []
    for language, text in re.findall(r"^```(\w+)\n(.*?)^```$", README.read_text(), re.DOTALL | re.MULTILINE):
        if language == "sh":
            found += [(line, []) for line in text.splitlines() if line.strip()]
        elif language == "console":
            found += [(command, said) for command, *said in (p.splitlines() for p in re.split(r"^\$ ", text, flags=re.M)[1:])]
    return found


class Reader:
    """Types what the page says. Commands that end are run in this process, those that serve as processes."""

    def __init__(self, folder: Path, port: int) -> None:
        self.folder, self.url = folder, f"http://127.0.0.1:{port}"
        self.environment = {"NEWSROOM_SITE": self.url, "PYTHONPATH": str(ROOT)}
        self.code = 0
        self._server: subprocess.Popen[str] | None = None
        self._worker: int | None = None

    def type(self, line: str) -> str:
        words = shlex.split(line.replace(LOCAL, self.url))
        background = words[-1] == "&"
        if words[0] == "holdfast":
            return self._work(words[1:-1]) if background else self._holdfast(words[1:])
        if words[:3] == ["python", "-m", "examples.newsroom"]:
            return self._serve(words[3:-1]) if background else self._newsroom(words[3:])
        if words[0] == "cd":
            self.folder = self.folder / words[1]
            os.chdir(self.folder)
        elif words[0] == "kill":
            self.stop_worker()
        elif words[0] != "export":
            subprocess.run(["bash", "-c", line], cwd=self.folder, check=True)
        return ""

    def _holdfast(self, words: list[str]) -> str:
        # A worker that was told to work is waited for: what a reader sees a moment later is what the page speaks of.
        self._settle()
        quick = ["--poll", "0.2s", "--grace", "0s"] if words[0] == "run" else []
        result = CliRunner().invoke(commands, [*words, *quick], prog_name="holdfast")
        self.code = result.exit_code
        assert self.code == (3 if words[0] == "run" else 0), (words, result.output)
        return result.stdout

    def _newsroom(self, words: list[str]) -> str:
        self._settle()
        said = io.StringIO()
        with contextlib.redirect_stdout(said):
            newsroom.main(words, standalone_mode=False)
        return said.getvalue()

    def _serve(self, words: list[str]) -> str:
        self._server = subprocess.Popen(
            [sys.executable, "-m", "examples.newsroom", *words, "--pages", PAGES], text=True, stdout=subprocess.PIPE,
            cwd=self.folder, env={**os.environ, **self.environment},
        )  # fmt: skip
        assert self._server.stdout is not None
        return self._server.stdout.readline()

    def _work(self, words: list[str]) -> str:
        before = len(worker_started(self.app))
        self._worker = the_workers().start([*words, "--poll", "2s"], self.environment, self.folder / "said", self.folder)
        soon(lambda: len(worker_started(self.app)) > before)
        return ""

    def _settle(self) -> None:
        """Wait until nothing moves: all is done, or something holds it."""
        if self._worker is None:
            return
        if (self.folder / "embargo").exists():
            # The pause before it is over, for somebody who types.
            soon(lambda: any(one.get("guards") for one in self.app.workers()) and not self.app.status()[0]["paused"])
        elif ask_control()["pages.down"]:
            soon(lambda: self._is_done() or (breaker_opened(self.app) and ask_alerts()))
        else:
            soon(self._is_done)

    def _is_done(self) -> bool:
        [pipeline] = self.app.status()
        return not any(OPEN & one["states"].keys() for one in pipeline["stages"])

    @cached_property
    def app(self) -> Holdfast:
        return Holdfast(f"sqlite:///{self.folder / 'holdfast.db'}", create=False)

    def stop_worker(self) -> None:
        if self._worker is not None:
            self._settle()
            os.kill(self._worker, signal.SIGTERM)
            assert the_workers().wait(self._worker) == 0, (self.folder / "said").read_text()
            self._worker = None

    def end(self) -> None:
        if "app" in vars(self):
            self.app.close()
        if self._worker is not None:
            os.kill(self._worker, signal.SIGKILL)
            the_workers().wait(self._worker)
        if self._server is not None:
            self._server.send_signal(signal.SIGTERM)
            assert self._server.wait(20) == 0
            assert self._server.stdout is not None
            self._server.stdout.close()


@pytest.fixture
def reader(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Reader]:
    """At the root of a repository, with a free port in place of 8050."""
    (tmp_path / "examples").symlink_to(EXAMPLE.parent)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        reader = Reader(tmp_path, free.getsockname()[1])
    for name in ("HOLDFAST_URL", "NEWSROOM_EMBARGO"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("NEWSROOM_SITE", reader.url)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.chdir(tmp_path)
    yield reader
    reader.end()


def shape(lines: list[str]) -> list[str]:
    """Without what differs with the size of the paper: numbers, and the space around them."""
    return [" ".join(re.sub(r"< |\d+(\.\d+)?", " ", line).split()) for line in lines]


@pytest.mark.req("J21")
def test_every_command_of_the_tutorial_works_and_prints_what_the_page_shows(reader: Reader):
    typed = steps()
    assert len(typed) > 35
    said: dict[str, list[str]] = {}
    for command, expected in typed:
        if command == "echo $?":
            assert expected == [str(reader.code)]
            continue
        said.setdefault(command, []).append(reader.type(command))
        printed = said[command][-1].splitlines()
        if expected:
            # The page leaves out how far it had come meanwhile, and what is said of the items that failed.
            assert set(shape(expected)) <= set(shape(printed)), (command, printed)
    told = {command: texts[-1] for command, texts in said.items()}
    why = [text for command, text in told.items() if command.startswith("holdfast why") and "/harbour/" in command]
    assert "embargo" in why[0]
    assert "the breaker is open" in told["python -m examples.newsroom alerts"]
    assert "breaker_opened" in told["holdfast events --event breaker_opened"]
    brought = told["holdfast import-legacy holdfast.yaml old.db"]
    assert re.search(r"^(\d+) rows read: \1 imported, 0 already there$", brought, re.MULTILINE)
    assert re.search(r"^(\d+) costs read: \1 \(0\.\d+\) imported", brought, re.MULTILINE)
    assert "(imported)" in told["holdfast costs --by resource,day"]
    assert "ferry" in told['python -m examples.newsroom search "ferry in the fog"'].lower()


@pytest.mark.req("J21")
def test_every_command_on_the_page_exists_with_its_options_and_every_link_leads_somewhere():
    guides.test_every_command_on_the_page_exists_with_its_options(README)
    guides.test_every_program_on_the_page_compiles(README)
    guides.test_every_link_on_the_page_leads_somewhere(README)
