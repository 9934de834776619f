"""`holdfast costs`: what was spent."""

from __future__ import annotations

import click

from holdfast.app import Holdfast
from holdfast.cli import options, times
from holdfast.cli.amounts import aligned, priced
from holdfast.cli.output import Facts, print_json, print_table
from holdfast.errors import UsageError
from holdfast.model.day import date_of
from holdfast.model.money import spoken
from holdfast.model.names import there_are

_MONEY = ("spent", "costs", "in_doubt", "set_aside")
_NUMBERS = ("payments", "doubts", "tokens_in", "tokens_out")


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
@click.option("--since", type=options.text, metavar="TIME", help="From then on: 7d (ago), or 2026-02-01T10:00Z.")
@options.common()
def costs(by: str, pipeline: str | None, since: str | None, store: str | None, as_json: bool) -> None:
    """Say what was spent, exactly, the largest sums first. Amounts are in the unit that handlers count in."""
    names = tuple(dict.fromkeys(part.strip() for part in by.split(",") if part.strip()))
    from_us = None if since is None else times.since(since)
    with options.open_to_ask(store) as app:
        _check(app, pipeline)
        sums = [_dated(one) for one in app.costs(names, pipeline=pipeline, since=from_us)]
    total = {name: sum(one[name] for one in sums) for name in (*_MONEY, *_NUMBERS)}
    if as_json:
        print_json({"costs": [priced(one, *_MONEY) for one in sums], "total": priced(total, *_MONEY)})
        return
    if not sums:
        click.echo("Nothing was spent.")
        return
    shown = ["costs", *(name for name in ("in_doubt", "set_aside") if total[name])]
    columns = [aligned([one[name] for one in sums]) for name in shown]
    counts = ["payments", *(name for name in ("tokens_in", "tokens_out") if total[name])]
    rows = [
        [*(one[name] for name in names), *money, *(one[name] for name in counts)]
        for one, *money in zip(sums, *columns, strict=True)
    ]
    heads = {"in_doubt": "in doubt", "set_aside": "set aside", "tokens_in": "tokens in", "tokens_out": "tokens out"}
    print_table(
        [heads.get(name, name) for name in (*names, *shown, *counts)], rows, right=[heads.get(n, n) for n in shown]
    )
    payments = total["payments"]
    click.echo(f"total {spoken(total['costs'])} in {payments:,} payment{'s' if payments != 1 else ''}")
    if total["in_doubt"]:
        calls = f"{total['doubts']:,} call{'s' if total['doubts'] != 1 else ''}"
        click.echo(
            f"in doubt {spoken(total['in_doubt'])} in {calls} that may have been charged; it counts as spent until somebody "
            f"says what became of them: holdfast resolve"
        )
    if total["set_aside"]:
        click.echo(f"set aside {spoken(total['set_aside'])} for what is running now")


def _check(app: Holdfast, pipeline: str | None) -> None:
    known = [one["name"] for one in app.status()] if pipeline is not None else []
    if pipeline is not None and pipeline not in known:
        raise UsageError(f"there is no pipeline {pipeline!r} in this store; {there_are(pipeline, known)}")


def _dated(one: Facts) -> Facts:
    """Days are counted from 1970; people, and JSON, get dates."""
    return {**one, "day": date_of(one["day"])} if "day" in one else one
