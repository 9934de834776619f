"""`holdfast sql`: queries for programs that ask the database themselves."""

from __future__ import annotations

import click

from holdfast.cli import Group, options
from holdfast.store.autoscaling import demand_query


@click.group(cls=Group, short_help="Print queries for other programs.")
def sql() -> None:
    """Print queries for programs that ask the database themselves."""


@sql.command(short_help="The query with which KEDA scales workers.")
@options.common(json=False)
def keda(store: str | None) -> None:
    """Print the query for KEDA's trigger `postgresql`, or for any other program that scales workers with the work.

    It returns one number: how much work needs a worker now or within a minute. 0 means that no worker is needed. It
    reads only counts and indexes, and costs the same at any number of items. For a SQLite file the query is in SQLite's
    SQL.
    """
    click.echo(demand_query(options.address(store)))
