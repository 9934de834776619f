"""`holdfast throughput`: attempts over time, and how long they take."""

from __future__ import annotations

import click

from holdfast.cli import options, times
from holdfast.cli.output import print_answer


@click.command(short_help="Attempts over time, and how long they take.")
@click.option("--pipeline", type=options.text)
@click.option("--stage", type=options.text)
@click.option(
    "--last", type=options.text, default="1h", show_default=True, metavar="TIME", help="How far back, up to 14d."
)
@options.common()
def throughput(pipeline: str | None, stage: str | None, last: str, store: str | None, as_json: bool) -> None:
    """Show how many attempts ended in the last hour or days, how they ended, how long they ran and how long their work had
    waited. Workers record this every 20 seconds."""
    with options.open_to_ask(store) as app:
        found = app.throughput(pipeline, stage=stage, last=times.age(last, what="--last"))
    print_answer(found, as_json=as_json)
