"""`holdfast import-legacy`: an old SQLite database whose stages lie in a JSON column, into a pipeline."""

from __future__ import annotations

import click

from holdfast.app import Holdfast
from holdfast.cli import options
from holdfast.cli.choose import one_pipeline
from holdfast.cli.loader import load
from holdfast.cli.output import counted, print_json, print_table, printable, shortened
from holdfast.cli.progress_line import ProgressLine
from holdfast.engine import legacy
from holdfast.engine.legacy import EXAMPLES, Report
from holdfast.errors import UsageError
from holdfast.model.legacy import KINDS
from holdfast.model.stage import PipelineSpec
from holdfast.model.states import State
from holdfast.store.legacy import OldTable
from holdfast.store.sqlite_files import file_of


@click.command("import-legacy", short_help="Import an old database with stages in a JSON column.")
@click.argument("file", type=options.text)
@click.argument("old", type=options.text, metavar="OLD.DB")
@click.option("--pipeline", type=options.text, help="Import only into this one of FILE.")
@click.option("--job", type=options.text, metavar="NAME", help="What OLD.DB calls the pipeline. [default: the same]")
@click.option("--table", type=options.text, default="work_items", show_default=True)
@click.option("--key-column", type=options.text, default="item_key", show_default=True)
@click.option("--pipeline-column", type=options.text, default="job_id", show_default=True)
@click.option("--stages-column", type=options.text, default="stages", show_default=True)
@click.option("--data-column", type=options.text, default="data", show_default=True)
@click.option("--dry-run", is_flag=True, help="Only read, and tell what would be imported.")
@click.option(
    "--examples", type=click.IntRange(0, EXAMPLES), default=3, show_default=True, help="Of each kind of problem."
)
@options.common(file=True)
def import_legacy(
    file: str, old: str, pipeline: str | None, job: str | None, table: str, key_column: str, pipeline_column: str,
    stages_column: str, data_column: str, dry_run: bool, examples: int, store: str | None, as_json: bool,
) -> None:  # fmt: skip
    """Import the items of OLD.DB, an SQLite database with a JSON column of stages, into the pipelines of FILE.

    OLD.DB is only read. Items that are there already stay as they are, so the command can be repeated, also after it was
    interrupted. Nothing is lost: what cannot be read is told, and an item whose stages cannot be read starts at the first.
    """
    loaded = load(file, store)
    with OldTable(
        old, table=table, key=key_column, pipeline=pipeline_column, stages=stages_column, data=data_column
    ) as rows:
        into = _into(file, loaded.specs, pipeline, job, rows)
        total, progress = rows.count(), ProgressLine()

        def draw(report: Report) -> None:
            progress.draw(f"{report.read:,} of {total:,} rows read, {report.imported:,} imported")

        if dry_run and not _is_there(loaded.url):
            report = legacy.import_legacy(None, rows, into, dry_run=True, on_batch=draw)
        else:
            with Holdfast(loaded.url, create=False) if dry_run else loaded.open() as app:
                app.register()
                report = legacy.import_legacy(app.store, rows, into, dry_run=dry_run, on_batch=draw)
        progress.close()
    if as_json:
        print_json({"dry_run": dry_run, **report.facts()})
    else:
        _print(report, dry_run, examples)


def _into(
    file: str, specs: list[PipelineSpec], wanted: str | None, job: str | None, rows: OldTable
) -> dict[str, PipelineSpec]:
    """Which name in the old table means which pipeline."""
    by_name = {spec.name: spec for spec in specs}
    if job is not None and not rows.has_pipelines:
        raise UsageError(
            f"--job {job}: {rows.path} has no column {', '.join(rows.missing)}; name it with --pipeline-column"
        )
    if wanted is None and job is None and rows.has_pipelines:
        return by_name
    chosen = by_name[one_pipeline(file, specs, wanted)]
    return {job or chosen.name: chosen}


def _is_there(url: str) -> bool:
    """Whether there is a store; a dry run makes none."""
    if url.startswith("sqlite:") and not file_of(url).exists():
        return False
    with Holdfast(url, create=False) as app:
        return app.schema_version() > 0


def _print(report: Report, dry_run: bool, examples: int) -> None:
    would = "would be imported" if dry_run else "imported"
    rest = [
        f"{report.repeated:,} with the key of an earlier row" if report.repeated else "",
        f"{report.elsewhere.total():,} of other pipelines" if report.elsewhere else "",
    ]
    told = ", ".join(filter(None, rest))
    click.echo(
        f"{report.read:,} rows read: {report.imported:,} {would}, {report.already_there:,} already there"
        f"{', ' if told else ''}{told}"
    )
    if report.missing:
        click.echo(f"not in the old table: {', '.join(printable(name) for name in report.missing)}")
    for name, n in report.elsewhere.most_common():
        click.echo(f"  {n:,} of pipeline {shortened(name, 60)!r}: to import them, name it with --job")
    if report.stages:
        rows = [[stage, counted(counts, [str(state) for state in State])] for stage, counts in report.stages.items()]
        print_table(["stage", "items"], rows)
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
