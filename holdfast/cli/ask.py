"""Questions about many items: status, items. They change nothing, and make neither a file nor tables."""

from __future__ import annotations

import click

from holdfast.cli import options
from holdfast.cli.output import print_answer
from holdfast.model.states import State


@click.command(short_help="How many items are in which state, how long stages take, which workers run.")
@options.common()
def status(store: str | None, as_json: bool) -> None:
    """Show how many items are in which state at each stage, how long attempts take, and which workers run."""
    with options.open_to_ask(store) as app:
        found = app.status()
    print_answer(found, as_json=as_json)


@click.command(short_help="List items.")
@click.option("--pipeline", type=options.text)
@click.option("--stage", type=options.text)
@click.option(
    "--state",
    "states",
    type=click.Choice([state.value for state in State]),
    multiple=True,
    help="Items with a stage in this state. May be given several times.",
)
@options.keys
@click.option("--error", type=options.text, metavar="TEXT", help="Part of the error text.")
@options.group
@click.option("--limit", type=click.IntRange(1, 100_000), default=100, show_default=True)
@click.option(
    "--after",
    type=options.text,
    default="0",
    metavar="ID[/STAGE]",
    help="Continue after this item, or after this stage of an item.",
)
@options.common()
def items(
    pipeline: str | None,
    stage: str | None,
    states: tuple[str, ...],
    key: tuple[str, ...],
    error: str | None,
    group: str | None,
    limit: int,
    after: str,
    store: str | None,
    as_json: bool,
) -> None:
    """List items in the order they were added; with --stage, --state, --error or --group, stages of items.

    The end of a page says with which --after the next one begins; in JSON it is the `cursor` of the last entry.
    """
    with options.open_to_ask(store) as app:
        found = app.items(
            pipeline=pipeline, stage=stage, state=states, key=key, error=error, group=group, after=after, most=limit
        )
    print_answer(found, as_json=as_json)
    if len(found) == limit and not as_json:
        click.echo(f"There may be more: --after {found[-1].cursor}", err=True)
