"""`holdfast costs`: what was spent."""

from __future__ import annotations

import click

from holdfast.app import Holdfast
from holdfast.cli import options, times
from holdfast.cli.output import print_answer
from holdfast.errors import UsageError
from holdfast.model.did_you_mean import there_are


@click.command(short_help="What was spent.")
@click.option(
    "--by",
    type=options.text,
    default="pipeline,stage",
    show_default=True,
    metavar="A,B",
    help="Sums by any of pipeline, stage, item, resource, model, day (in the zone of the resource).",
)
@click.option("--pipeline", type=options.text)
@click.option("--since", type=options.text, metavar="TIME", help="Since then: 7d (ago), or 2026-02-01T10:00Z.")
@options.common()
def costs(by: str, pipeline: str | None, since: str | None, store: str | None, as_json: bool) -> None:
    """Show what was spent, the largest sums first. Amounts are exact, in the currency unit that handlers use."""
    names = tuple(dict.fromkeys(part.strip() for part in by.split(",") if part.strip()))
    begin = None if since is None else times.since(since)
    with options.open_to_ask(store) as app:
        _check(app, pipeline)
        found = app.costs(names, pipeline=pipeline, since=begin)
    print_answer(found, as_json=as_json)


def _check(app: Holdfast, pipeline: str | None) -> None:
    known = [one.name for one in app.status().pipelines] if pipeline is not None else []
    if pipeline is not None and pipeline not in known:
        raise UsageError(f"there is no pipeline {pipeline!r} in this store; {there_are(pipeline, known)}")
