"""The database itself: `db upgrade`, `db check`, and `doctor`."""

from __future__ import annotations

from contextlib import closing

import click

from holdfast.app import Holdfast
from holdfast.cli import Group, options
from holdfast.cli.output import print_answer, print_json, printable
from holdfast.cli.progress_line import ProgressLine
from holdfast.errors import UsageError
from holdfast.store.postgres_address import is_postgres
from holdfast.store.postgres_grants import grants as read_grants

#: The database holds what must never be; and something wants to be looked at.
WRONG, TO_LOOK_AT = 5, 1


@click.group(cls=Group, short_help="Manage the database: upgrade, check, grants.")
def db() -> None:
    """Manage the database."""


@db.command(short_help="Create the tables, or bring them up to date.")
@options.common()
def upgrade(store: str | None, as_json: bool) -> None:
    """Create the tables, or bring them up to date; creates a SQLite file that does not exist. Workers may keep running."""
    with Holdfast(options.address(store)) as app:
        done = app.upgrade()
        version = app.schema_version()
    if as_json:
        print_json({"applied": done, "schema": version})
        return
    for migration in done:
        click.echo(f"applied {migration}")
    click.echo(f"The schema is {version}{'' if done else ' already'}.")


@db.command(short_help="Look for damage; with --repair, repair it.")
@click.option("--repair", is_flag=True, help="Set aside rows that belong to nothing, and rebuild counts.")
@options.blobs
@options.common()
def check(repair: bool, blobs: str | None, store: str | None, as_json: bool) -> None:
    """Look for damage: a damaged file, a stage of an item in two places, rows that belong to no item or stage, texts
    that cannot be read, counts or sums of money that do not add up, items that wait for themselves, references to kept
    content that does not exist.

    Reads every row. Without --repair nothing is changed, and the command says what a repair would find. Exit code 5 if
    it finds something that was not repaired. Work may continue meanwhile, also during a repair, but workers of an older
    holdfast must have ended.
    """
    with options.open_to_ask(store, blobs=blobs) as app:
        repaired = app.repair(by=options.user()) if repair else []
        with closing(ProgressLine()) as progress:
            wrong = app.check(progress=lambda table, rows: progress.draw(f"reading {table}: {rows:,}"))
    if as_json:
        print_json({"wrong": wrong, "repaired": repaired})
    else:
        for line in repaired:
            click.echo(f"repaired: {printable(line)}")
        for line in wrong:
            click.echo(printable(line))
        click.echo(f"{len(wrong)} contradictions" if wrong else "All is well.")
    options.finish(WRONG if wrong else 0)


@db.command(short_help="Print the SQL that gives roles of PostgreSQL the rights they need.")
@click.option(
    "--worker",
    "workers",
    type=options.text,
    multiple=True,
    metavar="ROLE",
    help="A role that adds items, works on them and changes them.",
)
@click.option("--reader", "readers", type=options.text, multiple=True, metavar="ROLE", help="A role that only reads.")
@options.common(json=False)
def grants(workers: tuple[str, ...], readers: tuple[str, ...], store: str | None) -> None:
    """Print the SQL that gives roles of PostgreSQL the rights they need, and no more.

    It is for the owner of the tables to run, who also runs `holdfast db upgrade`. Nothing is changed here.
    """
    url = options.address(store)
    if not is_postgres(url):
        raise UsageError("a SQLite file has no roles: who may read or write the file may do so with what is in it")
    if not workers and not readers:
        raise UsageError("name a role with --worker or --reader; both may be given several times")
    for statement in read_grants(url, workers, readers):
        click.echo(statement)


@click.command(short_help="Diagnose the installation, the database and its workers.")
@click.option("--exit-code", is_flag=True, help="Exit with code 1 if something needs attention, for monitoring.")
@options.common()
def doctor(exit_code: bool, store: str | None, as_json: bool) -> None:
    """Show facts about this installation, the database and its workers that help to find a problem.

    Exit code 5 if a SQLite file is damaged, or nothing can be saved. With --exit-code, 1 if workers are silent, if work
    waits and no worker runs its stage, if paid calls are in doubt, or if a transaction on the PostgreSQL server has
    been open for half an hour. A SQLite file over 256 MB is not checked for damage here: `holdfast db check` does that.
    """
    with options.open_to_ask(store) as app:
        found = app.doctor()
    print_answer(found, as_json=as_json)
    options.finish(WRONG if not found.is_well else TO_LOOK_AT if exit_code and found.findings else 0)
