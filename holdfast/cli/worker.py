"""`holdfast worker`: serve for ever, in this process or in several that are watched over."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import Any

import click

from holdfast.app import YES_VARIABLE
from holdfast.cli import options
from holdfast.cli.changes import approval
from holdfast.cli.run import crash_as_asked
from holdfast.cli.stopping import say_stopping
from holdfast.program_file import load
from holdfast.worker import Settings
from holdfast.worker.supervise import Process, Supervisor

#: How a parent tells its children the store of --store: a command can be read by everybody on the machine.
STORE_VARIABLE = "HOLDFAST_SUPERVISED_STORE"


@click.command(short_help="Run until stopped: work whenever there is some.")
@click.argument("file", type=options.text)
@click.option(
    "--processes", type=click.IntRange(1, 1000), help="Start this many worker processes, and restart those that die."
)
@options.work
@options.yes
@click.option("--ready-fd", type=int, hidden=True, help="Write a byte here once the work has begun.")
@click.option("--supervised-by", type=int, hidden=True, help="Stop when this is no longer the parent process.")
@options.common(json=False, level=1, file=True)
def worker(
    file: str,
    store: str | None,
    processes: int | None,
    yes: bool,
    ready_fd: int | None,
    supervised_by: int | None,
    **given: Any,
) -> None:
    """Work on the pipelines in FILE until stopped.

    FILE is a job file (.yaml), a Python file or a dotted module name. SIGTERM or Ctrl-C ends it once running handlers are
    done, within --grace; a second one hands their items back at once.
    """
    settings = options.read_settings(**given)
    if processes is None:
        if supervised_by is not None:
            store = store or os.environ.pop(STORE_VARIABLE, None)
        _serve(file, store, settings, yes, ready_fd, supervised_by)
        return
    options.finish(
        Supervisor(
            lambda place: Process(_child(file, given, place), _environment(store, yes)),
            processes,
            patience_seconds=settings.grace_seconds + 20.0,
        ).run()
    )


def _serve(
    file: str, store: str | None, settings: Settings, yes: bool, ready_fd: int | None, parent: int | None
) -> None:
    crash_as_asked()
    found = load(file, store)
    with found.open() as app:
        # Of several processes, none can ask.
        worker = app.worker(settings, approval(yes=yes, may_ask=parent is None))
        unsaid = [ready_fd] if ready_fd is not None else []

        def tick() -> None:
            while unsaid:
                fd = unsaid.pop()
                os.write(fd, b".")
                os.close(fd)
            if parent is not None and os.getppid() != parent and not worker.stopping:
                worker.stop()

        worker.run(on_tick=tick, on_signal=say_stopping if parent is None else None)


def _child(file: str, given: dict[str, Any], place: int) -> Callable[[int], list[str]]:
    """The command of one child, as a function of where it tells that it is ready."""
    name = f"{given['name']}-{place + 1}" if given["name"] else ""
    words = {**given, "name": name}
    verbose = ["-v"] * int(click.get_current_context().meta.get("holdfast.verbose", 0))
    fixed = [f"--{option}={value}" for option, value in words.items() if value != ""]

    def command(ready_fd: int) -> list[str]:
        return [
            sys.executable,
            "-m",
            "holdfast",
            "worker",
            *fixed,
            *verbose,
            f"--ready-fd={ready_fd}",
            f"--supervised-by={os.getpid()}",
            "--",
            file,
        ]

    return command


def _environment(store: str | None, yes: bool) -> dict[str, str]:
    more = {STORE_VARIABLE: store} if store else {}
    return {**os.environ, **more, **({YES_VARIABLE: "1"} if yes else {})}
