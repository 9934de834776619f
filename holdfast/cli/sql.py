"""`holdfast sql`: queries for programs that ask the database themselves."""

from __future__ import annotations

import click

from holdfast.cli import Group, options
from holdfast.store.autoscaling import demand_query


@click.group(cls=Group, short_help="Print queries for other programs.")
def sql() -> None:
    """Print queries for programs that ask the database themselves."""


@sql.command(short_help="The query by which KEDA starts and stops workers.")
@options.common(json=False)
def keda(store: str | None) -> None:
    """Print the query for KEDA's trigger `postgresql`, or for any other program that starts and stops workers by need.

    It returns one number: how much work needs a worker now or within a minute. 0 means that none is needed. It reads counts
    and indexes only, and costs the same at any number of items. For a SQLite file it is in SQLite's words.
    """
    click.echo(demand_query(options.address(store)))
