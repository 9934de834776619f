"""`holdfast prune`: forget what is old."""

from __future__ import annotations

import click

from holdfast.cli import options, times
from holdfast.cli.output import print_json
from holdfast.errors import UsageError


@click.command(short_help="Forget old events, and items that ended long ago.")
@click.option("--events-older-than", type=options.text, metavar="TIME", help="Events before that: 90d. Costs are kept.")
@click.option(
    "--items-older-than", type=options.text, metavar="TIME", help="Items that ended before that, with all of theirs: 365d."
)
@options.common()
def prune(events_older_than: str | None, items_older_than: str | None, store: str | None, as_json: bool) -> None:
    """Forget old events, and items all of whose stages ended long ago, with everything that belongs to them.

    What was spent stays known. An item whose key is added again begins anew. Works in small steps: stopped half-way,
    the next one goes on.
    """
    if events_older_than is None and items_older_than is None:
        raise UsageError("nothing to forget: give --events-older-than, --items-older-than or both")
    events = None if events_older_than is None else times.age(events_older_than, what="--events-older-than")
    items = None if items_older_than is None else times.age(items_older_than, what="--items-older-than")
    with options.open_to_ask(store) as app:
        counts = app.prune(events_older_than=events, items_older_than=items)
    if as_json:
        print_json(counts)
    else:
        asked = {"events": events, "items": items}
        told = [f"{counts[name]:,} {name}" for name in asked if asked[name] is not None]
        click.echo(f"forgotten: {', '.join(told)}")
