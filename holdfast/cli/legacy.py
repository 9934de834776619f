"""`holdfast import-legacy`: what an earlier program has left in a database, into a pipeline."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from holdfast.answers.text_tables import counted
from holdfast.app import Holdfast
from holdfast.cli import options
from holdfast.cli.choose import one_pipeline
from holdfast.cli.output import print_json, print_table, printable, shortened
from holdfast.cli.progress_line import ProgressLine
from holdfast.errors import DefinitionError, UsageError
from holdfast.jobfile.handlers import Handlers
from holdfast.jobfile.problems import Problems
from holdfast.jobfile.reading import read, read_file
from holdfast.legacy import importing
from holdfast.legacy.mapping import Mapped, MappedByFunction
from holdfast.legacy.old_database import OldDatabase
from holdfast.legacy.open_database import open_old
from holdfast.legacy.report import EXAMPLES, ImportReport
from holdfast.legacy.shapes import SHAPES
from holdfast.legacy.stages_of_old_item import KINDS
from holdfast.model.money import spoken
from holdfast.model.stage import PipelineSpec
from holdfast.model.states import State
from holdfast.program_file import JOB_FILES, load
from holdfast.store.kind import kind_of_address
from holdfast.store.sqlite_files import file_of


@click.command("import-legacy", short_help="Import items from the database of an earlier program.")
@click.argument("file", type=options.text)
@click.argument("old", type=options.text)
@click.option("--pipeline", type=options.text, help="Import only into this pipeline of FILE.")
@click.option("--job", type=options.text, metavar="NAME", help="The name of the pipeline in OLD. [default: the same]")
@click.option("--shape", type=click.Choice([*SHAPES]), help="The layout of OLD. [default: stages-json]")
@click.option("--mapping", type=options.text, help="A YAML file that maps its tables and columns; or module:function.")
@click.option("--table", type=options.text, help="The table of items. [default: the one of the shape or mapping]")
@click.option("--dry-run", is_flag=True, help="Only read, and report what would be imported.")
@click.option(
    "--examples",
    type=click.IntRange(0, EXAMPLES),
    default=3,
    show_default=True,
    help="How many examples to show of each kind of problem.",
)
@options.common(file=True)
def import_legacy(
    file: str,
    old: str,
    pipeline: str | None,
    job: str | None,
    shape: str | None,
    mapping: str | None,
    table: str | None,
    dry_run: bool,
    examples: int,
    store: str | None,
    as_json: bool,
) -> None:
    """Import the items of OLD, a SQLite file or postgresql://…, into the pipelines of FILE.

    OLD is only read. Items that already exist stay as they are, so you can repeat the command, also after an
    interruption. Nothing is lost: what cannot be read is reported, and an item whose stages cannot be read starts at
    its first stage.
    """
    loaded = load(file, store)
    mapped = _mapping(shape, mapping, table)
    with open_old(old) as database:
        into = _into(file, loaded.specs, pipeline, job, database, mapped)
        total, progress = database.table(mapped.table).count(), ProgressLine()

        def draw(report: ImportReport) -> None:
            progress.draw(f"{report.read:,} of {total:,} rows read, {report.imported:,} imported")

        if dry_run and not _is_there(loaded.url):
            report = importing.import_legacy(None, database, mapped, into, dry_run=True, on_batch=draw)
        else:
            with Holdfast(loaded.url, create=False) if dry_run else loaded.open() as app:
                app.register()
                report = importing.import_legacy(app.store, database, mapped, into, dry_run=dry_run, on_batch=draw)
        progress.close()
    if as_json:
        print_json({"dry_run": dry_run, **report.facts()})
    else:
        _print(report, dry_run, examples)


def _mapping(shape: str | None, mapping: str | None, table: str | None) -> Mapped | MappedByFunction:
    """The mapping that is meant: a file, a function, or a shape as it is."""
    named = {} if table is None else {"table": table}
    if mapping is None:
        return Mapped.read({"shape": shape or "stages-json", **named})
    if Path(mapping).suffix.lower() in JOB_FILES:
        given: Any = read(read_file(mapping), Problems(mapping)).plain()
        if not isinstance(given, dict):
            raise UsageError(f"{mapping} is not a mapping: write it like key: item_key")
        return Mapped.read({**({} if shape is None else {"shape": shape}), **given, **named}, where=mapping)
    if ":" not in mapping:
        raise UsageError(f"--mapping {mapping}: name a file that ends with .yaml, or a function as module:function")
    if table is None or shape is not None:
        raise UsageError(f"--mapping {mapping}: a function needs --table, and has no --shape")
    handlers = Handlers(Path.cwd())
    handlers.look_here()
    try:
        return MappedByFunction(table, handlers.find(mapping))
    except DefinitionError as error:
        raise UsageError(f"--mapping {mapping}: {error}") from error


def _into(
    file: str,
    specs: list[PipelineSpec],
    wanted: str | None,
    job: str | None,
    old: OldDatabase,
    mapping: Mapped | MappedByFunction,
) -> dict[str, PipelineSpec]:
    """Which name in the old database means which pipeline."""
    by_name = {spec.name: spec for spec in specs}
    named = importing.check(old, mapping)
    if job is not None and not named:
        raise UsageError(
            f"--job {job}: table {mapping.table!r} has no column for it; say in a mapping which is the pipeline"
        )
    if wanted is None and job is None and named:
        return by_name
    chosen = by_name[one_pipeline(file, specs, wanted)]
    return {job or chosen.name: chosen}


def _is_there(url: str) -> bool:
    """Whether there is a store; a dry run makes none."""
    if kind_of_address(url) == "sqlite" and not file_of(url).exists():
        return False
    with Holdfast(url, create=False) as app:
        return app.schema_version() > 0


def _print(report: ImportReport, dry_run: bool, examples: int) -> None:
    would = "would be imported" if dry_run else "imported"
    rest = [
        f"{report.repeated:,} with the key of an earlier row" if report.repeated else "",
        f"{report.left_out:,} left out by the mapping" if report.left_out else "",
        f"{report.elsewhere.total():,} of other pipelines" if report.elsewhere else "",
    ]
    told = ", ".join(filter(None, rest))
    click.echo(
        f"{report.read:,} rows read: {report.imported:,} {would}, {report.already_there:,} already there"
        f"{', ' if told else ''}{told}"
    )
    for name, log in (("costs", report.costs), ("events", report.events)):
        if log.read:
            worth = f" ({spoken(log.amount)})" if name == "costs" else ""
            click.echo(
                f"{log.read:,} {name} read: {log.imported:,}{worth} {would}, {log.already_there:,} already there"
            )
    if not dry_run and not report.changed:
        click.echo("nothing has changed")
    if report.missing:
        click.echo(f"not in the old database: {', '.join(printable(name) for name in report.missing)}")
    if report.not_taken:
        columns = ", ".join(f"{printable(name)} ({n:,} rows)" for name, n in report.not_taken.items())
        click.echo(f"columns that the mapping does not name: {columns}")
    for name, n in report.elsewhere.most_common():
        click.echo(f"  {n:,} of pipeline {shortened(name, 60)!r}: to import them, name it with --job")
    if report.stages:
        rows = [[stage, counted(counts, [str(state) for state in State])] for stage, counts in report.stages.items()]
        print_table(["stage", "items"], rows)
    for stage, again in report.again.items():
        price = "" if again.cost is None else f", which is expected to cost {spoken(again.cost)}"
        what = "would be" if dry_run else "is"
        click.echo(f"{stage} {what} run again for {again.count:,}, whose results are missing{price}")
    if report.problems:
        click.echo("could not be read:")
    for kind in KINDS:
        if kind in report.problems:
            trouble = report.problems[kind]
            click.echo(f"  {trouble.count:,} {kind}: {KINDS[kind]}")
            for one in trouble.examples[:examples]:
                where = f", {shortened(one.stage, 40)}" if one.stage else ""
                found = f": {shortened(one.found, 100)}" if one.found else ""
                click.echo(f"    row {one.row}, {shortened(one.key, 60)}{where}{found}")
