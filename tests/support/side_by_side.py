"""Runs tests in several processes: `pytest --processes 6`.

Tests are collected once; then this process forks, hands out tests, and prints what their reports say. Processes that each
collect all tests for themselves, as with pytest-xdist, take minutes of CPU before the first test begins.

Tests with the same mark `together(name)` run in one process, one after the other: they share something dear, or must not run
side by side. A process that dies fails the test that it was running, and a new one takes its place.
"""

from __future__ import annotations

import json
import os
import select
import selectors
import signal
import socket
import sys
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, NoReturn

import pytest

MARK = "together"
#: A killed process may leave children behind that keep its socket open: now and then each is asked whether it is alive.
ALIVE_SECONDS = 1.0


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--processes", type=int, default=0, help="run the tests in this many processes")


@pytest.hookimpl(tryfirst=True)
def pytest_runtestloop(session: pytest.Session) -> bool | None:
    wanted = session.config.option.processes
    if wanted < 1 or session.config.option.collectonly or session.testsfailed:
        return None
    SideBySide(session, wanted).run()
    return True


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Name a test as soon as it has failed: a run of hours may be broken off before it prints its summary."""
    if report.failed:
        print(f"\nFAILED so far: {report.nodeid}", file=sys.__stderr__, flush=True)


@dataclass
class Helper:
    """A process that runs tests, seen from the one that hands them out."""

    pid: int
    socket: socket.socket
    lines: Lines
    #: What it was given and has not finished: numbers of tests, in groups.
    given: deque[deque[int]] = field(default_factory=deque)

    def give(self, group: deque[int] | None) -> None:
        """Hand out tests that run one after the other, or say that there are no more."""
        if group is not None:
            self.given.append(group)
        with suppress(OSError):  # it has died, which is noticed elsewhere
            _send(self.socket, list(group) if group is not None else None)


class SideBySide:
    """One run: the process that hands out tests."""

    def __init__(self, session: pytest.Session, wanted: int) -> None:
        self._session = session
        self._config = session.config
        self._waiting = deque(_groups(session.items))
        self._wanted = min(wanted, len(self._waiting))
        self._helpers: dict[int, Helper] = {}
        self._started = 0
        self._selector = selectors.DefaultSelector()
        self._folder = session.config._tmp_path_factory.getbasetemp()  # type: ignore[attr-defined]

    def run(self) -> None:
        # What is captured goes into a file, which processes must not share.
        self._config.pluginmanager.getplugin("capturemanager").stop_global_capturing()
        reporter = self._config.pluginmanager.getplugin("terminalreporter")
        reporter.showfspath = False  # the next report may be of a test in any file
        try:
            for _ in range(self._wanted):
                self._start()
            while self._helpers:
                for key, _ in self._selector.select(ALIVE_SECONDS):
                    self._hear(key.data)
                self._bury_the_dead()
                self._stop_if_asked()
        finally:
            for helper in self._helpers.values():
                os.kill(helper.pid, signal.SIGKILL)
                os.waitpid(helper.pid, 0)

    def _start(self) -> None:
        ours, theirs = socket.socketpair()
        self._started += 1
        sys.stdout.flush()
        sys.stderr.flush()
        pid = os.fork()
        if not pid:
            ours.close()
            for helper in self._helpers.values():
                helper.socket.close()
            _run_tests(self._session, theirs, self._folder / f"process-{self._started}")
        theirs.close()
        helper = self._helpers[pid] = Helper(pid, ours, Lines(ours))
        self._selector.register(ours, selectors.EVENT_READ, helper)
        # Two at first: one that knows what comes next keeps the fixtures that both need.
        for _ in range(2):
            helper.give(self._next())

    def _next(self) -> deque[int] | None:
        return self._waiting.popleft() if self._waiting else None

    def _hear(self, helper: Helper) -> None:
        for said in helper.lines.read():
            if "report" in said:
                self._report(said["report"])
            elif "finished" in said:
                self._finish(helper, said["finished"])
        if helper.lines.ended:
            self._selector.unregister(helper.socket)

    def _report(self, data: dict[str, Any]) -> None:
        report = self._config.hook.pytest_report_from_serializable(config=self._config, data=data)
        if isinstance(report.longrepr, list):  # where a test was skipped, and why: JSON has no tuples
            report.longrepr = tuple(report.longrepr)
        self._config.hook.pytest_runtest_logreport(report=report)

    def _finish(self, helper: Helper, number: int) -> None:
        item = self._session.items[number]
        self._config.hook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
        helper.given[0].remove(number)
        if not helper.given[0]:
            helper.given.popleft()
            helper.give(self._next())

    def _bury_the_dead(self) -> None:
        for helper in list(self._helpers.values()):
            pid, status = os.waitpid(helper.pid, os.WNOHANG)
            if not pid:
                continue
            # Its last words; without waiting, since its own children may keep the line open.
            while not helper.lines.ended and select.select([helper.socket], [], [], 0)[0]:
                self._hear(helper)
            if not helper.lines.ended:
                self._selector.unregister(helper.socket)
            helper.socket.close()
            del self._helpers[pid]
            if helper.given:
                self._replace(helper, os.waitstatus_to_exitcode(status))

    def _replace(self, helper: Helper, code: int) -> None:
        """The test that was running has failed, and is not tried again: one that hangs would hang again."""
        number = helper.given[0].popleft()
        item = self._session.items[number]
        how = f"signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
        report = pytest.TestReport(
            item.nodeid, item.location, {}, "failed", f"the process that ran this test ended with {how}", "call"
        )
        self._config.hook.pytest_runtest_logreport(report=report)
        self._config.hook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
        self._waiting.extendleft(reversed([group for group in helper.given if group]))
        if self._waiting:
            self._start()

    def _stop_if_asked(self) -> None:
        if self._session.shouldfail:
            raise self._session.Failed(self._session.shouldfail)
        if self._session.shouldstop:
            raise self._session.Interrupted(self._session.shouldstop)


def _groups(items: Sequence[pytest.Item]) -> Iterator[deque[int]]:
    """The tests by number: those that belong together, the largest groups first, and then each of the others alone."""
    groups: dict[str, deque[int]] = {}
    alone = []
    for number, item in enumerate(items):
        if (mark := item.get_closest_marker(MARK)) is not None:
            groups.setdefault(mark.args[0], deque()).append(number)
        else:
            alone.append(deque([number]))
    yield from sorted(groups.values(), key=len, reverse=True)
    yield from alone


# The process that runs tests ------------------------------------------------------------------------------------------


def _run_tests(session: pytest.Session, line: socket.socket, folder: Any) -> NoReturn:
    """Run what is handed out, and report; in a process that was forked for this, and that ends here."""
    code = 1
    try:
        config = session.config
        folder.mkdir(mode=0o700)
        config._tmp_path_factory._basetemp = folder  # type: ignore[attr-defined]
        for name in ("terminalreporter", "lfplugin", "nfplugin", __name__):
            if (plugin := config.pluginmanager.getplugin(name)) is not None:
                config.pluginmanager.unregister(plugin)
        config.pluginmanager.register(_Reporter(config, line))
        config.pluginmanager.getplugin("capturemanager").start_global_capturing()
        given = _given(line)
        number = next(given, None)
        while number is not None:
            following = next(given, None)
            config.hook.pytest_runtest_protocol(
                item=session.items[number], nextitem=session.items[following] if following is not None else None
            )
            _send(line, {"finished": number})
            number = following
        code = 0
    finally:
        # Not as Python ends: what is registered for the end belongs to the process that was forked.
        os._exit(code)


def _given(line: socket.socket) -> Iterator[int]:
    """The numbers of the tests to run. Each group is asked for only once the one before it is nearly done."""
    lines = Lines(line)
    while not lines.ended:
        for group in lines.read():
            if group is None:
                return
            yield from group


class _Reporter:
    """Sends the reports of tests to the process that prints them."""

    def __init__(self, config: pytest.Config, line: socket.socket) -> None:
        self._config, self._line = config, line

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        data = self._config.hook.pytest_report_to_serializable(config=self._config, report=report)
        _send(self._line, {"report": data})


# What they say to each other ------------------------------------------------------------------------------------------


class Lines:
    """Messages of the other side: one line of JSON each."""

    def __init__(self, line: socket.socket) -> None:
        self._socket = line
        self._rest = b""
        self.ended = False

    def read(self) -> list[Any]:
        """What has come, waiting for some of it; nothing if the other side has ended."""
        try:
            got = self._socket.recv(1 << 16)
        except ConnectionError:
            got = b""
        if not got:
            self.ended = True
            return []
        *whole, self._rest = (self._rest + got).split(b"\n")
        return [json.loads(line) for line in whole]


def _send(line: socket.socket, message: Any) -> None:
    line.sendall(json.dumps(message, default=str).encode() + b"\n")
