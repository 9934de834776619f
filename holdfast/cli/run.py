"""`holdfast run`: take every item through every stage, show it, and say how it ended."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import click

from holdfast.answers.run_summary import Summary
from holdfast.app import Holdfast, created_log
from holdfast.cli import options
from holdfast.cli.confirm_changes import approval
from holdfast.cli.exit_codes import SOME_FAILED
from holdfast.cli.monitoring import monitoring, taken_from
from holdfast.cli.output import print_json
from holdfast.cli.progress import watched
from holdfast.cli.run_summary import print_summary
from holdfast.cli.stopping import exit_code, say_stopping
from holdfast.errors import AlreadyRunning
from holdfast.model.durations import seconds
from holdfast.program_file import load


@click.command(short_help="Run every item through every stage, then exit.")
@click.argument("file", type=options.text)
@options.work
@monitoring
@options.yes
@click.option("--one-at-a-time", is_flag=True, help="Do nothing, with exit code 7, if another such run is at work.")
@click.option("-q", "--quiet", is_flag=True, help="Print nothing unless something went wrong.")
@click.option("--progress-seconds", type=options.text, default="5s", hidden=True)
@options.common(file=True, log_format=True)
def run(
    file: str,
    store: str | None,
    as_json: bool,
    progress_seconds: str,
    yes: bool,
    one_at_a_time: bool,
    quiet: bool,
    **given: Any,
) -> None:
    """Run every item through every stage of the pipelines in FILE, and exit when no work is left.

    FILE is a job file (.yaml), a Python file or a dotted module name. You can kill it at any moment: started again, it resumes.
    Exit code 3: some items failed. 7: with --one-at-a-time, another run is at work.
    """
    watch = taken_from(given)
    if quiet:
        created_log.setLevel(logging.WARNING)
    settings = options.read_settings(**given)
    crash_as_asked()
    found = load(file, store)
    names = [spec.name for spec in found.specs]
    shown = watched(found.url, names, sys.stderr if as_json else sys.stdout, seconds(progress_seconds))
    with found.open() as app, _alone(app, one_at_a_time, quiet):
        app.register(approval(yes=yes))
        if any(found.sources.values()):
            from holdfast.discovery import discover_now

            discover_now(app, found.sources, found.merges)
        worker = app.worker(settings, metrics=watch.wants_metrics)
        summary: Summary | None = None
        watch.of(worker.metrics, worker.health, lambda: app.store.kind)

        def tick() -> None:
            watch.tick()
            if not quiet:
                shown.tick()

        try:
            worker.run(
                until_drained=True,
                on_tick=tick,
                tick_seconds=shown.tick_seconds,
                on_signal=None if quiet else say_stopping,
            )
            summary = app.summary(interrupted=worker.interrupted)
        finally:
            watch.close()
            shown.close(None if summary is None else summary.pipelines)
    if quiet and not summary.failed and not summary.interrupted:
        return
    if as_json:
        print_json(summary.json())
    else:
        print_summary(file, summary)
    if summary.interrupted:
        options.finish(exit_code(worker))
    options.finish(SOME_FAILED if summary.failed else 0)


@contextmanager
def _alone(app: Holdfast, wanted: bool, quiet: bool) -> Iterator[None]:
    """Keep other runs away, if that is wanted. If quiet, only the exit code says that there is one."""
    if not wanted:
        yield
        return
    with ExitStack() as held:
        try:
            held.enter_context(app.one_at_a_time())
        except AlreadyRunning as error:
            if not quiet:
                raise
            options.finish(error.exit_code)
        yield


def crash_as_asked() -> None:
    """For tests: end this process at the point that the environment names."""
    if os.environ.get("HOLDFAST_CRASH_AT"):
        from holdfast.testing import crash_from_environment

        crash_from_environment()
