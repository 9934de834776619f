"""`holdfast crashtest`: kill a pipeline at every durable boundary, resume it, and say whether that made a difference."""

from __future__ import annotations

import json
import os
from typing import Any

import click

from holdfast.app import URL_VARIABLE
from holdfast.cli import options
from holdfast.cli.output import print_json, printable
from holdfast.crashtest.crash_test import crashtest as run_crashtest
from holdfast.crashtest.report import CrashReport, Kill, counted, shown
from holdfast.errors import UsageError
from holdfast.model.money import spoken as money

A_DIFFERENCE = 1
HEAD = ("#", "starts", "paid", "in doubt", "verdict", "killed")


@click.command(short_help="Kill a pipeline at every durable boundary, and compare the results.")
@click.argument("file", type=options.text)
@click.option("--item", type=options.text, required=True, metavar="KEY", help="The key of the item to run.")
@click.option("--data", type=options.text, metavar="JSON", help="Its data, an object.")
@click.option("--pipeline", type=options.text, help="Its pipeline, if FILE has several.")
@click.option(
    "--table", "tables", type=options.text, multiple=True, help="Compare only these tables of yours. [default: all]"
)
@click.option(
    "--ignore",
    type=options.text,
    multiple=True,
    metavar="WHAT",
    help="Leave out a TABLE, a TABLE.COLUMN, or the result of a PIPELINE/STAGE.",
)
@click.option(
    "--setup",
    type=options.text,
    metavar="MODULE:FUNCTION",
    help="A function that creates your tables, given the address of the copy; without MODULE, a function in FILE.",
)
@click.option(
    "--template",
    type=options.text,
    metavar="DATABASE",
    help="A SQLite file, or a database on the PostgreSQL server; every run starts with a copy of it.",
)
@click.option(
    "--variable",
    "variables",
    type=options.text,
    multiple=True,
    metavar="NAME",
    help=f"An environment variable that gets the address of the copy, beside {URL_VARIABLE}.",
)
@click.option(
    "--at",
    "only",
    type=click.IntRange(min=1),
    multiple=True,
    metavar="N",
    help="Kill only at the boundary with this number in --list.",
)
@click.option(
    "--random",
    "at_random",
    type=click.IntRange(min=0),
    default=0,
    metavar="N",
    help="Kill N more times at random moments.",
)
@click.option("--seed", type=int, help="Makes --random choose the same moments again.")
@click.option("--timeout", type=options.text, default="60s", show_default=True, help="How long one run may take.")
@click.option("--list", "only_list", is_flag=True, help="Only list the boundaries at which it would be killed.")
@options.common()
def crashtest(
    file: str,
    item: str,
    data: str | None,
    store: str | None,
    as_json: bool,
    only_list: bool,
    tables: tuple[str, ...],
    **given: Any,
) -> None:
    """Run one item of the pipelines in FILE undisturbed, then again and again from the start: killed at every durable
    boundary (a claim, a record of `once`, an effect, a commit, a submit), and resumed in a new process until it is done.
    The results, the items that follow, your own tables and what was paid must be the same each time.

    FILE is a job file (.yaml), a Python file or a dotted module name. All of it takes place in copies: new SQLite files or,
    if --store is the address of a PostgreSQL server, new databases there. Exit code 1: there is a difference.
    """
    address = store or os.environ.get(URL_VARIABLE) or None
    talks = not as_json and not only_list
    report = run_crashtest(
        file,
        item={**_data(data), "key": item},
        store=address,
        tables=tables or None,
        kill=not only_list,
        on_begin=_begin if talks else _nothing,
        on_kill=_tell if talks else _nothing,
        **given,
    )
    if as_json:
        print_json(report.as_json())
    elif only_list:
        for number, place in enumerate(report.boundaries, 1):
            click.echo(f"{number:>4}  {printable(place)}")
    else:
        _end(report)
    options.finish(0 if report.ok else A_DIFFERENCE)


def _data(given: str | None) -> dict[str, Any]:
    try:
        data = json.loads(given or "{}")
    except ValueError as error:
        raise UsageError(f"--data is no JSON: {error}") from None
    if not isinstance(data, dict):
        raise UsageError('--data is not an object: write it like \'{"path": "v.epub"}\'')
    return data


def _nothing(_: object) -> None:
    """With --json, everything is printed at the end."""


def _begin(report: CrashReport) -> None:
    for note in report.notes:
        click.echo(f"Note: {printable(note)}")
    cost = f", {money(report.cost)} spent" if report.cost else ""
    click.echo(
        f"Undisturbed: {counted(report.starts, 'start')} of handlers, {counted(report.paid, 'paid call')}{cost}; "
        f"tables of yours: {printable(', '.join(report.tables)) or 'none'}"
    )
    if not report.unsteady:
        click.echo("  ".join([HEAD[0].rjust(4), *HEAD[1:]]))


def _tell(kill: Kill) -> None:
    cells = [str(kill.number).rjust(4), str(kill.starts).rjust(6), str(kill.paid).rjust(4), str(kill.in_doubt).rjust(8)]
    verdict = {"same": "same", "different": "DIFFERS", "not reached": "missed"}[kill.verdict]
    click.echo("  ".join([*cells, verdict.ljust(7), printable(kill.where)]))
    for one in kill.differences:
        for line in shown(one, " " * 6):
            click.echo(printable(line))


def _end(report: CrashReport) -> None:
    if report.unsteady:
        click.echo("Two undisturbed runs ended differently:")
        for one in report.unsteady:
            for line in shown(one):
                click.echo(printable(line))
    for words in report.advice:
        click.echo(f"What to change: {printable(words)}")
    if report.seed is not None and report.kills:
        click.echo(f"--random with --seed {report.seed} draws the same places.")
    if not report.unsteady:
        click.echo(report.summary)
