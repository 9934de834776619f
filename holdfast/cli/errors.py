"""`holdfast errors`: what fails, grouped by cause."""

from __future__ import annotations

import click

from holdfast.cli import options, times
from holdfast.cli.amounts import aligned, priced
from holdfast.cli.output import TIMES, dated, instant, print_json, print_table, shortened
from holdfast.model.shell import word


@click.command(short_help="What fails, grouped by cause.")
@click.option("--pipeline", type=options.text)
@click.option("--stage", type=options.text)
@click.option("--since", type=options.text, metavar="TIME", help="Seen from then on: 7d (ago), or 2026-02-01T10:00Z.")
@click.option("--limit", type=click.IntRange(1, 10_000), default=20, show_default=True)
@options.common()
def errors(
    pipeline: str | None, stage: str | None, since: str | None, limit: int, store: str | None, as_json: bool
) -> None:
    """Say what attempts failed of, the most frequent cause first.

    Failures are alike if they have the same class of error, raised at the same place of your code, with the same message apart
    from keys and numbers. `items`, `retry`, `cancel`, `forget` and `delete` take a group with --group.
    """
    from_us = None if since is None else times.since(since)
    with options.open_to_ask(store) as app:
        found = app.errors(pipeline=pipeline, stage=stage, since=from_us, most=limit)
    if as_json:
        print_json([priced(dated(one, *TIMES), "spent") for one in found])
        return
    if not found:
        click.echo("No attempt has failed.")
        return
    spent = aligned([one["spent"] for one in found])
    rows = [
        [
            one["group"],
            one["count"],
            f"{one['items']}{'+' if one['more_items'] else ''}",
            money,
            ", ".join(one["stages"]),
            instant(one["last_seen"]),
            shortened(": ".join(part for part in (one["error"], one["message"]) if part), 100),
        ]
        for one, money in zip(found, spent, strict=True)
    ]
    head = ["group", "attempts", "items now", "spent", "stages", "last seen", "error"]
    print_table(head, rows, right=("items now", "spent"), least=("last seen", "spent", "stages"))
    first = found[0]
    if first["key"] is not None:
        where = f" in {first['place']}" if first["place"] else ""
        click.echo(f"The first of them{where}, for one: holdfast show {word(first['key'])}")
    click.echo(f"To send its items back: holdfast retry --group {first['group']}")
