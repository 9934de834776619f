"""`holdfast alerts`: the alert rules of a store and their notifications. It changes nothing."""

from __future__ import annotations

import click

from holdfast.cli import options
from holdfast.cli.output import print_answer


@click.command(short_help="Alert rules and their notifications.")
@click.option("--limit", type=click.IntRange(1, 1000), default=100, show_default=True, help="How many notifications.")
@options.common()
def alerts(limit: int, store: str | None, as_json: bool) -> None:
    """Show the alert rules that workers have watched events for; notifications that wait, and those that were delivered or
    given up."""
    with options.open_to_ask(store) as app:
        found = app.alert_status(most=limit)
    print_answer(found, as_json=as_json)
