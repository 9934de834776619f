"""`holdfast worker`: work until stopped, in this process or in several that are restarted if they die."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import click

from holdfast.app import YES_VARIABLE
from holdfast.cli import options
from holdfast.cli.confirm_changes import approval
from holdfast.cli.monitoring import Monitoring, monitoring, taken_from
from holdfast.cli.run import crash_as_asked
from holdfast.cli.stopping import say_stopping
from holdfast.program_file import load
from holdfast.telemetry.metrics import Metrics
from holdfast.telemetry.sum_of_processes import Fleet, Reporter
from holdfast.worker import Settings, Worker
from holdfast.worker.supervise import Process, Supervisor

#: How a parent tells its children the store of --store: a command can be read by everybody on the machine.
STORE_VARIABLE = "HOLDFAST_SUPERVISED_STORE"


@click.command(short_help="Run until stopped: work whenever there is some.")
@click.argument("file", type=options.text)
@click.option(
    "--processes", type=click.IntRange(1, 1000), help="Start this many worker processes, and restart those that die."
)
@options.work
@monitoring
@options.yes
@click.option("--ready-fd", type=int, hidden=True, help="Write a byte here once the work has begun.")
@click.option("--supervised-by", type=int, hidden=True, help="Stop when this is no longer the parent process.")
@click.option("--reports", is_flag=True, hidden=True, help="Report counts and health there, too.")
@options.common(json=False, level=1, file=True, log_format=True)
def worker(
    file: str,
    store: str | None,
    processes: int | None,
    yes: bool,
    ready_fd: int | None,
    supervised_by: int | None,
    reports: bool,
    **given: Any,
) -> None:
    """Work on the pipelines in FILE until stopped.

    FILE is a job file (.yaml), a Python file or a dotted module name. SIGTERM or Ctrl-C ends it once running handlers are
    done, within --grace; a second one hands their items back at once.
    """
    watch = taken_from(given)
    settings = options.read_settings(**given)
    if processes is not None:
        options.finish(_supervise(file, store, settings, yes, processes, watch, given))
    elif supervised_by is None:
        _serve(file, store, settings, yes, watch)
    else:
        store = store or os.environ.pop(STORE_VARIABLE, None)
        _serve(file, store, settings, yes, watch, _Parent(supervised_by, ready_fd, reports))


def _supervise(
    file: str,
    store: str | None,
    settings: Settings,
    yes: bool,
    processes: int,
    watch: Monitoring,
    given: dict[str, Any],
) -> int:
    """Start worker processes, and speak for all of them."""
    metrics = Metrics()
    fleet = Fleet(metrics)
    watch.of(metrics, fleet.health, lambda: fleet.store)
    supervisor = Supervisor(
        lambda place: Process(
            _child(file, given, place, reports=watch.is_wanted), _environment(store, yes), fleet.listener(place)
        ),
        processes,
        patience_seconds=settings.grace_seconds + 40.0,
    )
    try:
        return supervisor.run(on_pass=watch.tick)
    finally:
        watch.close()


@dataclass
class _Parent:
    """The process that supervises this one, and where it wants to hear of it."""

    pid: int
    descriptor: int | None
    wants_reports: bool
    store: str = ""
    _reporter: Reporter | None = None

    def tick(self, worker: Worker) -> None:
        if self.descriptor is not None:
            os.write(self.descriptor, b".")
            if self.wants_reports:
                self._reporter = Reporter(self.descriptor, self.store)
            else:
                os.close(self.descriptor)
            self.descriptor = None
        if self._reporter is not None and worker.metrics is not None:
            self._reporter.send(worker.metrics, worker.health())
        if os.getppid() != self.pid and not worker.stopping:
            worker.stop()

    def close(self, worker: Worker) -> None:
        if self._reporter is not None and worker.metrics is not None:
            self._reporter.close(worker.metrics)


def _serve(
    file: str, store: str | None, settings: Settings, yes: bool, watch: Monitoring, parent: _Parent | None = None
) -> None:
    crash_as_asked()
    found = load(file, store)
    with found.open() as app:
        counts = watch.wants_metrics or (parent is not None and parent.wants_reports)
        # Of several processes, none can ask.
        worker = app.worker(settings, approval(yes=yes, may_ask=parent is None), metrics=counts)
        watch.of(worker.metrics, worker.health, lambda: app.store.kind)
        if parent is not None:
            parent.store = app.store.kind

        def tick() -> None:
            watch.tick()
            if parent is not None:
                parent.tick(worker)

        try:
            worker.run(on_tick=tick, on_signal=say_stopping if parent is None else None)
        finally:
            watch.close()
            if parent is not None:
                parent.close(worker)


def _child(file: str, given: dict[str, Any], place: int, *, reports: bool) -> Callable[[int], list[str]]:
    """The command of one child, as a function of where it tells that it is ready."""
    name = f"{given['name']}-{place + 1}" if given["name"] else ""
    words = {**given, "name": name}
    said = click.get_current_context().meta
    logs = [f"--log-format={said[options.LOG_FORMAT]}", *["-v"] * int(said.get("holdfast.verbose", 0))]
    fixed = [f"--{option}={value}" for option, value in words.items() if value != ""]

    def command(ready_fd: int) -> list[str]:
        return [
            sys.executable,
            "-m",
            "holdfast",
            "worker",
            *fixed,
            *logs,
            f"--ready-fd={ready_fd}",
            f"--supervised-by={os.getpid()}",
            *["--reports"] * reports,
            "--",
            file,
        ]

    return command


def _environment(store: str | None, yes: bool) -> dict[str, str]:
    more = {STORE_VARIABLE: store} if store else {}
    return {**os.environ, **more, **({YES_VARIABLE: "1"} if yes else {})}
