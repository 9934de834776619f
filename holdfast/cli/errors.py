"""`holdfast errors`: what fails, grouped by cause."""

from __future__ import annotations

import click

from holdfast.cli import options, times
from holdfast.cli.output import print_answer


@click.command(short_help="What fails, grouped by cause.")
@click.option("--pipeline", type=options.text)
@click.option("--stage", type=options.text)
@click.option("--since", type=options.text, metavar="TIME", help="Seen since then: 7d (ago), or 2026-02-01T10:00Z.")
@click.option("--limit", type=click.IntRange(1, 10_000), default=20, show_default=True)
@options.common()
def errors(
    pipeline: str | None, stage: str | None, since: str | None, limit: int, store: str | None, as_json: bool
) -> None:
    """Show why attempts failed, the most frequent cause first.

    Failures are alike if they have the same class of error, raised at the same place of your code, with the same message apart
    from keys and numbers. `items`, `retry`, `cancel`, `forget` and `delete` take a group with --group.
    """
    begin = None if since is None else times.since(since)
    with options.open_to_ask(store) as app:
        found = app.errors(pipeline=pipeline, stage=stage, since=begin, most=limit)
    print_answer(found, as_json=as_json)
