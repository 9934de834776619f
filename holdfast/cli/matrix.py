"""`holdfast matrix`: the items of a pipeline by stage and state, from the first to the last."""

from __future__ import annotations

import click

from holdfast.cli import options
from holdfast.cli.output import print_answer


@click.command(short_help="Items × stages: how far the items of a pipeline are, from the first to the last.")
@click.argument("pipeline", type=options.text)
@click.option(
    "--rows",
    type=click.IntRange(1, 1000),
    default=20,
    show_default=True,
    help="Into how many rows to divide the items.",
)
@options.common()
def matrix(pipeline: str, rows: int, store: str | None, as_json: bool) -> None:
    """Count the items of a pipeline by stage and state, in rows of items that were added one after another. Reads the whole
    pipeline."""
    with options.open_to_ask(store) as app:
        found = app.matrix(pipeline, rows=rows)
    print_answer(found, as_json=as_json)
