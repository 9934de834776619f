"""`holdfast adopt-sql`: an additive migration for a table of the user's own, up or down, printed."""

from __future__ import annotations

import json

import click

from holdfast.cli import options
from holdfast.errors import UsageError


@click.command("adopt-sql", short_help="Print a migration that prepares your own table.")
@click.option("--table", required=True, type=options.text, metavar="NAME")
@click.option(
    "--schema", type=options.text, metavar="NAME", help="The schema of the table, if it is not the default one."
)
@click.option("--status", default="status", show_default=True, type=options.text, metavar="COLUMN")
@click.option(
    "--key",
    default=("id",),
    show_default=True,
    multiple=True,
    type=options.text,
    metavar="COLUMN",
    help="A column of its primary key. May be given several times.",
)
@click.option("--queued", default="queued", show_default=True, type=options.text, metavar="WORD")
@click.option("--processing", default="processing", show_default=True, type=options.text, metavar="WORD")
@click.option("--heartbeat", default="last_heartbeat", show_default=True, type=options.text, metavar="COLUMN")
@click.option(
    "--started",
    default="started_at",
    show_default=True,
    type=options.text,
    metavar="COLUMN",
    help="When work started. For each of these columns, an empty name omits it.",
)
@click.option("--attempts", default="attempts", show_default=True, type=options.text, metavar="COLUMN")
@click.option("--next-attempt", default="next_attempt_at", show_default=True, type=options.text, metavar="COLUMN")
@click.option("--row-version", default="version", show_default=True, type=options.text, metavar="COLUMN")
@click.option("--holder", default="holder", show_default=True, type=options.text, metavar="COLUMN")
@click.option(
    "--older-than",
    default="30m",
    show_default=True,
    type=options.text,
    help="How old a heartbeat must be for the row to be stale.",
)
@click.option("--dialect", type=click.Choice(["postgresql", "sqlite"]), help="[default: that of --url, or postgresql]")
@click.option(
    "--url", type=options.text, help="The SQLAlchemy URL of the database: inspect it, and print only what is missing."
)
@click.option("--down", is_flag=True, help="Print the migration that removes what was added.")
def adopt_sql(
    table: str,
    schema: str | None,
    status: str,
    key: tuple[str, ...],
    queued: str,
    processing: str,
    heartbeat: str,
    started: str,
    attempts: str,
    next_attempt: str,
    row_version: str,
    holder: str,
    older_than: str,
    dialect: str | None,
    url: str | None,
    down: bool,
) -> None:
    """Print a migration that gives an existing table what the guarantees need.

    These are columns for a heartbeat (with time zone), the start of work, attempts, the next attempt, a version and a
    holder; an index of the rows that are processing, and one of the queued rows; and is_job_stale. Without a heartbeat,
    is_job_stale uses the start of work, and a row that has neither is stale.

    The script adds only what is missing and changes nothing else; --down removes only what was added. On PostgreSQL the
    script itself checks what is missing, and you may run it twice. For SQLite, give --url, so that the command can
    check.
    """
    from holdfast.adopt.ddl.migration import inspect, migration
    from holdfast.adopt.ddl.missing_columns import WantedColumns

    names = {
        "heartbeat": heartbeat,
        "started": started,
        "attempts": attempts,
        "next_attempt": next_attempt,
        "version": row_version,
        "holder": holder,
    }
    wanted = WantedColumns(table, status, schema, key, queued, processing, names, older_than)
    found = None
    if url is not None:
        dialect_there, found, wanted = inspect(url, wanted)
        if dialect not in (None, dialect_there):
            raise UsageError(f"--url is a {dialect_there} database, --dialect says {dialect}")
        dialect = dialect_there
    written = migration(wanted, dialect or "postgresql", found)
    click.echo(
        f"-- holdfast adopt-sql{' --down' if down else ''}: table {json.dumps(table)}, {dialect or 'postgresql'}"
    )
    click.echo(written.script(written.down if down else written.up), nl=False)
