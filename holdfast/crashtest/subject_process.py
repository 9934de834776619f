"""The processes of a crash test: one that has loaded the file, and forks a worker for every run.

    python -m holdfast.crashtest.subject_process FILE DESCRIPTOR

The descriptor is a socket to the client, who sends each child an order. A forked worker is a process like any other, with
connections, threads and children of its own, but it starts in a fraction of the time. If loading the file left threads or
connections behind, which a fork must not share, this process says so, and carries out a single order itself.
"""

from __future__ import annotations

import ctypes
import dataclasses
import fcntl
import gc
import importlib
import logging
import os
import signal
import socket
import stat
import sys
import threading
from collections.abc import Callable
from contextlib import nullcontext, suppress
from functools import partial
from pathlib import Path
from typing import Any

from holdfast import points, schema
from holdfast.app import URL_VARIABLE, Holdfast
from holdfast.blobs import BLOBS_VARIABLE
from holdfast.crashtest import record, watch
from holdfast.crashtest.crash_points import CRASH_VARIABLE, crash_from_environment
from holdfast.engine.layout import layout
from holdfast.errors import HoldfastError, UsageError
from holdfast.model.backoff import Backoff
from holdfast.model.functions import named
from holdfast.model.stage import PipelineSpec
from holdfast.program_file import Loaded, load
from holdfast.runtime import child_messages as wire
from holdfast.runtime.fork_server import serve_alone, serve_forks
from holdfast.store.kind import kind_of_address
from holdfast.store.sqlite_dialect import SQLiteDialect
from holdfast.worker import Settings
from holdfast.worker import undeclared_reads as undeclared

PR_SET_PDEATHSIG = 1
#: Failed attempts are retried at once: the test does not depend on the delay.
QUICK = Backoff(first_seconds=0.01, most_seconds=0.05)
#: One handler at a time in each pool, so that runs are as similar as possible. Dead workers are found by their pid.
SETTINGS = Settings(concurrency=1, lease_seconds=10.0, grace_seconds=0.0, poll_seconds=0.1, name="crashtest")


def main() -> None:
    file, descriptor = sys.argv[1:]
    _die_with_parent(signal.SIGKILL)
    line = socket.socket(fileno=int(descriptor))
    line.set_inheritable(False)
    logging.basicConfig(level=logging.ERROR, format="%(levelname)s %(name)s: %(message)s")
    url = os.environ[URL_VARIABLE]
    _load_what_takes_long(url)
    before = _open_files()
    try:
        found = load(file, None)
    except HoldfastError as error:
        wire.send(line, _refusal(error))
        return
    named = found.url if found.url != url else None
    left = _left_behind(before)
    names = [spec.name for spec in found.specs]
    wire.send(line, {"pipelines": names, "named": named, "left": left, "blobs": found.blobs})
    subject = Subject(file, dataclasses.replace(found, url=url))
    # Freeze what is loaded: garbage collection in a child would copy every page of it.
    gc.freeze()
    if left:
        serve_alone(line, subject.serve)
    else:
        _die_with_parent(0)  # the fork server ends its children, and then itself
        serve_forks(line, subject.serve)


class Subject:
    """The tested file, on its copy of a store."""

    def __init__(self, file: str, found: Loaded) -> None:
        self._file = file
        self._found = found
        self._specs = [_quick(spec) for spec in found.specs]

    def serve(self, line: socket.socket) -> None:
        """Carry out the client's order, with the output going to a file."""
        order = wire.receive(line)
        said = os.open(order["said"], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666)
        for target in (1, 2):
            os.dup2(said, target)
        os.close(said)
        try:
            {"prepare": self._prepare, "run": self._run}[order["do"]](order)
            answer = {}
        except HoldfastError as error:
            answer = _refusal(error)
        except BaseException:
            logging.exception("a crash test's process ended")
            raise
        # The client may kill this process as soon as it has answered.
        sys.stdout.flush()
        sys.stderr.flush()
        wire.send(line, answer)

    def _open(self) -> Holdfast:
        # No sources, no alerts and no limits: a crash test runs the given item at full speed.
        resources: dict[str, dict[str, Any]] = {name: {} for name in self._found.resources}
        blobs = os.environ.get(BLOBS_VARIABLE) or self._found.blobs
        return Holdfast(self._found.url, self._specs, resources=resources, merges=self._found.merges, blobs=blobs)

    def _prepare(self, order: dict[str, Any]) -> None:
        """Create holdfast's tables and the user's, and add the items."""
        with self._open() as app:
            app.register()
            if order["setup"]:
                self._function(order["setup"])(self._found.url)
            if order["alone"]:
                # Items that wait in a template are not tested.
                app.cancel(by="crashtest", reason="only the item of the crash test is run")
            for pipeline, items in order["items"].items():
                app.add(pipeline, items)

    def _run(self, order: dict[str, Any]) -> None:
        """Run a worker until nothing is left to do, or until it is killed."""
        if order["crash_at"]:
            os.environ[CRASH_VARIABLE] = order["crash_at"]
            crash_from_environment()
        with self._open() as app:
            worker = app.worker(SETTINGS)
            if order["record"]:
                os.environ[record.VARIABLE] = order["record"]
                known = app.store.read(layout)
                watched = watch.Watch(
                    Path(order["record"]),
                    {number: row.label for number, row in known.stages.items()},
                    {row.pipeline: row.pipeline_name for row in known.stages.values()},
                    order["kill"],
                )
                watch.listen_to_own_commits()
                points.listen(watched)
            tell = partial(record.append, order["record"], "undeclared")
            with undeclared.listening(tell) if order["record"] else nullcontext():
                worker.run(until_drained=True, signals=False)
            if order["record"]:
                points.listen(None)
                record.append(order["record"], "passed", watched.passed)

    def _function(self, name: str) -> Callable[[str], Any]:
        """A function named as `module:function`, or one of the file."""
        home, _, function = name.rpartition(":")
        found = named(importlib.import_module(home) if home else self._module(), function)
        if not callable(found):
            raise UsageError(f"setup: there is no function {name!r}: name one as module:function, or one of the file")
        return found  # type: ignore[no-any-return]

    def _module(self) -> Any:
        place = os.path.realpath(self._file)
        for module in list(sys.modules.values()):
            if getattr(module, "__name__", "") == self._file or getattr(module, "__file__", None) == place:
                return module
        raise UsageError(f"setup: {self._file} has no functions: name one as module:function")


def _quick(spec: PipelineSpec) -> PipelineSpec:
    stages = tuple(dataclasses.replace(stage, backoff=QUICK) for stage in spec.stages)
    return PipelineSpec(spec.name, stages, data_type=spec.data_type)


def _die_with_parent(number: int) -> None:
    """Send this process a signal when its parent dies, or 0 for none, if the system supports it."""
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, number)


def _refusal(error: HoldfastError) -> dict[str, str]:
    """The message of an error, and its nearest class in `holdfast.errors`."""
    kind = next(one.__name__ for one in type(error).__mro__ if one.__module__ == "holdfast.errors")
    return {"error": "\n".join(getattr(error, "lines", [str(error)])), "kind": kind}


# Whether it can be forked ---------------------------------------------------------------------------------------------


def _load_what_takes_long(url: str) -> None:
    for name in ("sqlalchemy.dialects.sqlite", "holdfast.store.sqlite"):
        importlib.import_module(name)
    schema.newest()
    SQLiteDialect().statements()
    if kind_of_address(url) == "postgres":
        for name in ("sqlalchemy.dialects.postgresql.psycopg", "holdfast.store.postgres"):
            importlib.import_module(name)
        from holdfast.store.postgres_address import read_url
        from holdfast.store.postgres_dialect import PostgresDialect

        PostgresDialect(read_url(url)[1]).statements()


def _open_files() -> set[str]:
    try:
        return set(os.listdir("/proc/self/fd"))
    except OSError:
        return set()


def _left_behind(before: set[str]) -> str:
    """What loading the file left behind that a fork must not share, in words."""
    threads = [one.name for one in threading.enumerate() if one is not threading.main_thread()]
    if threads:
        return f"the thread {threads[0]!r}"
    for number in sorted(_open_files() - before):
        with suppress(OSError, ValueError):
            mode = os.fstat(int(number)).st_mode
            both = fcntl.fcntl(int(number), fcntl.F_GETFL) & os.O_ACCMODE == os.O_RDWR
            if stat.S_ISSOCK(mode) or (stat.S_ISREG(mode) and both):
                return f"a connection, or a file open for writing ({os.readlink(f'/proc/self/fd/{number}')})"
    return ""


if __name__ == "__main__":
    main()
