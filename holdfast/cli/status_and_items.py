"""Questions about many items: status, items. They change nothing, and make neither a file nor tables."""

from __future__ import annotations

import click

from holdfast.cli import options
from holdfast.cli.output import print_answer
from holdfast.cli.times import since as instant


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
@options.states
@options.keys
@click.option("--error", type=options.text, metavar="TEXT", help="Part of the error text.")
@options.group
@click.option("--attempts", type=click.IntRange(min=0), metavar="N", help="At least this many attempts.")
@click.option("--version", type=options.text, metavar="TEXT", help="A result of this version of the code.")
@click.option("--cost", type=options.text, metavar="AMOUNT", help="Paid calls that have cost at least this much.")
@click.option("--since", type=options.text, metavar="TIME", help="Updated since this instant, or this long ago: 90m.")
@click.option("--until", type=options.text, metavar="TIME", help="Updated before this instant, or this long ago.")
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
    attempts: int | None,
    version: str | None,
    cost: str | None,
    since: str | None,
    until: str | None,
    limit: int,
    after: str,
    store: str | None,
    as_json: bool,
) -> None:
    """List items in the order they were added. With any filter except --pipeline and --key, list stages of items.

    The end of a page says which --after gives the next page; in JSON it is the `cursor` of the last entry. With
    --attempts, --version, --cost, --since, --until or --error, or where matches are rare, a page searches only a part
    of the items. If there are more, stderr says which --after continues the search.
    """
    with options.open_to_ask(store) as app:
        found = app.items(
            pipeline=pipeline,
            stage=stage,
            state=states,
            key=key,
            error=error,
            group=group,
            attempts=attempts,
            version=version,
            cost=cost,
            since=None if since is None else instant(since),
            until=None if until is None else instant(until, "--until"),
            after=after,
            most=limit,
        )
    print_answer(found, as_json=as_json)
    if found.cursor is not None and (found.looked_at is not None or not as_json):
        looked = "" if found.looked_at is None else f"Looked at {found.looked_at:,} items or stages of items. "
        click.echo(f"{looked}There may be more: --after {found.cursor}", err=True)
