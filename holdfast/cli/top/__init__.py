"""`holdfast top`: pipelines, money, workers and what is in the way, live in a terminal.

`asking` asks the store and says how often, `view` is what a person looks at, `frame` turns both into lines, `screen` is the
terminal, `keyboard` reads keys, `controls` does what they say, and `live` is the loop that connects them.
"""

from __future__ import annotations

import os
import sys

import click

from holdfast.cli import options
from holdfast.cli.output import terminal_width
from holdfast.cli.top.polling import Facts, ask
from holdfast.errors import UsageError
from holdfast.model.durations import seconds

#: A line of a frame that goes to a file or a pipe is cut here.
LONGEST_LINE = 1000


@click.command(short_help="Watch pipelines, money and workers live, and steer them by keys.")
@click.option("--once", is_flag=True, help="Print one frame and exit, as is done where there is no terminal.")
@click.option(
    "--every",
    type=options.text,
    default="2s",
    show_default=True,
    metavar="TIME",
    help="How often to ask the store; less often if it takes long to answer.",
)
@options.common(json=False)
def top(once: bool, every: str, store: str | None) -> None:
    """Show every pipeline with its stages, rates, today's costs, workers, and what blocks work, and keep it up to date.

    Keys filter, pause and resume a pipeline, retry what has failed, and open an item; ? lists them, q quits.
    """
    every_seconds = seconds(every, what="--every")
    if not every_seconds:
        raise UsageError("--every: give a length of time above zero, like 2s")
    if once or not _is_live():
        with options.open_to_ask(store) as app:
            _print(ask(app))
        return
    app = options.open_to_ask(store)
    try:
        facts = ask(app)
    except BaseException:
        app.close()
        raise
    # Loaded here: it needs a terminal of a Unix system.
    from holdfast.cli.top.live import Live
    from holdfast.cli.top.screen import Screen

    live = Live(app, Screen(sys.stdin.fileno(), sys.stdout.fileno()), facts, every_seconds)
    try:
        ended_by = live.run()
    finally:
        live.close()
    if live.is_acting:
        click.echo("holdfast: the last command is still under way; see `holdfast actions`", err=True)
    if ended_by:
        options.finish(128 + ended_by)


def _is_live() -> bool:
    """Whether there is a terminal that can be drawn on."""
    return sys.stdin.isatty() and sys.stdout.isatty() and os.environ.get("TERM", "dumb") not in ("dumb", "unknown", "")


def _print(facts: Facts) -> None:
    from rich.console import Console

    from holdfast.cli.top.frame import overview
    from holdfast.cli.top.view import View

    width = terminal_width() or LONGEST_LINE
    console = Console(file=sys.stdout, width=width, markup=False, highlight=False, emoji=False)
    for line in overview(View(facts), width, None):
        console.print(line, no_wrap=True, overflow="ellipsis", crop=True)
