"""Questions about one item: show, why. They change nothing, and make neither a file nor tables."""

from __future__ import annotations

import click

from holdfast.cli import options
from holdfast.cli.output import print_answer


@click.command(short_help="One item: its data, stages and history.")
@options.one_item
def show(key: str, pipeline: str | None, store: str | None, as_json: bool) -> None:
    """Show one item: its data, the state of each stage, and what happened to it."""
    with options.open_to_ask(store) as app:
        item = app.show(key, pipeline)
    print_answer(item.without_secrets(), as_json=as_json)


@click.command(short_help="What keeps an item from running, and when it clears.")
@options.one_item
def why(key: str, pipeline: str | None, store: str | None, as_json: bool) -> None:
    """Name the one thing that keeps an item from running, when it clears, and what can be done."""
    with options.open_to_ask(store) as app:
        answer = app.why(key, pipeline)
    print_answer(answer, as_json=as_json)
