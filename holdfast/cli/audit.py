"""`holdfast audit`: who did what, when and why. It changes nothing, and makes neither a file nor tables."""

from __future__ import annotations

import click

from holdfast.cli import options, times
from holdfast.cli.output import print_answer


@click.command(short_help="Who did what, when and why.")
@click.option("--by", type=options.text, metavar="NAME", help="Only what this person did.")
@click.option("--verb", type=options.text, metavar="COMMAND", help="Only this command: retry, pause, tune, …")
@click.option("--since", type=options.text, metavar="TIME", help="Since then: 2h (ago), or 2026-02-01T10:00Z.")
@click.option("--limit", type=click.IntRange(1, 100_000), default=100, show_default=True)
@click.option("--after", type=options.text, default="", metavar="PLACE", help="Continue after this entry.")
@options.common()
def audit(
    by: str | None, verb: str | None, since: str | None, limit: int, after: str, store: str | None, as_json: bool
) -> None:
    """Show who did what, when and why, newest first. What was done to many items at once is one entry: see `holdfast
    actions`."""
    begin = None if since is None else times.since(since)
    with options.open_to_ask(store) as app:
        page = app.audit(by=by, verb=verb, since=begin, after=after, most=limit)
    print_answer(page, as_json=as_json)
    if page.cursor and not as_json:
        click.echo(f"There may be more: --after {page.cursor}", err=True)
