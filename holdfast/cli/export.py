"""`holdfast export`: the results of a pipeline as a file."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import click

from holdfast.app import Holdfast
from holdfast.cli import options
from holdfast.cli.exit_codes import SOME_FAILED
from holdfast.cli.output import as_json as in_json
from holdfast.cli.progress_line import ProgressLine
from holdfast.errors import UsageError
from holdfast.export.results import FORMATS, Format, Results
from holdfast.export.whole_file import whole_file
from holdfast.model.durations import seconds
from holdfast.model.states import BAD, FINISHED

#: Longer than any cursor.
LONGEST_CURSOR = 1 << 20


@click.command(short_help="Write results to a file: JSON lines, CSV or Parquet.")
@click.argument("pipeline", type=options.text)
@click.option("--stage", type=options.text, help="Only this stage. [default: all stages of the pipeline]")
@click.option("--format", "kind", type=click.Choice(FORMATS), help="[default: by the name of the file, else jsonl]")
@click.option(
    "--columns",
    type=options.text,
    metavar="A,B",
    help="As in key,data.path,result.pages:int,cost. [default: all, whole]",
)
@click.option(
    "--state",
    "states",
    type=click.Choice(sorted(state.value for state in FINISHED)),
    multiple=True,
    help="May be given several times. [default: done; failed and exhausted with --error or --group]",
)
@options.keys
@click.option("--error", type=options.text, metavar="TEXT", help="A part of the error.")
@options.group
@click.option("--older-than", type=options.text, metavar="TIME", help="Finished at least this long ago: 7d.")
@click.option(
    "--since", type=options.text, metavar="CURSOR", help="What was written since the export that printed this."
)
@click.option(
    "--cursor-file",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Continue from the cursor in this file, if there is one, and write the next cursor to it.",
)
@click.option("-o", "--output", type=options.text, default="-", metavar="FILE", help="[default: -, standard output]")
@click.option("--fail-if-failed", is_flag=True, help="Exit with code 3 if anything has failed at these stages.")
@options.common()
def export(
    pipeline: str,
    stage: str | None,
    kind: Format | None,
    columns: str | None,
    cursor_file: Path | None,
    since: str | None,
    output: str,
    fail_if_failed: bool,
    store: str | None,
    as_json: bool,
    **filters: Any,
) -> None:
    """Write the results of PIPELINE, one row for each stage of an item that is done.

    A file gets its name when it is complete. The last line on stderr, or the answer in JSON, has a cursor. With it, the
    next export writes what was added or changed since, and misses nothing. A row may be written again, so insert or
    replace rows by key and stage.
    """
    if since is not None and cursor_file is not None:
        raise UsageError("give --since or --cursor-file, not both")
    if cursor_file is not None:
        since = _read_cursor(cursor_file)
    with options.open_to_ask(store) as app:
        results = app.results(pipeline, stage, columns=columns, since=since, **_read_filters(**filters))
        rows = _write(results, output, kind)
        failed = _failed(app, pipeline, stage) if fail_if_failed else 0
    if cursor_file is not None and results.cursor is not None:
        with whole_file(cursor_file) as out:
            out.write(f"{results.cursor}\n".encode())
    _say(results, rows, failed, to_stderr=output == "-", as_json=as_json)
    if failed:
        options.finish(SOME_FAILED)


def _read_filters(
    states: tuple[str, ...], key: tuple[str, ...], error: str | None, group: str | None, older_than: str | None
) -> dict[str, Any]:
    age = None if older_than is None else seconds(older_than, what="--older-than")
    return {"state": states, "key": key or None, "error": error, "group": group, "older_than": age}


def _read_cursor(file: Path) -> str | None:
    try:
        with open(file, encoding="utf-8") as text:
            return text.read(LONGEST_CURSOR).strip()
    except FileNotFoundError:
        return None
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{file} cannot be read: {error}") from error


def _write(results: Results[Any], output: str, kind: Format | None) -> int:
    line = ProgressLine() if sys.stderr.isatty() else None
    progress = None if line is None else lambda rows: line.draw(f"{rows:,} rows")
    try:
        if output != "-":
            return results.write(output, kind, progress=progress)
        if kind == "parquet" and sys.stdout.isatty():
            raise UsageError("a Parquet file is not for a terminal: name a file with -o")
        out = sys.stdout.buffer
        rows = results.write(out, kind, progress=progress)
        out.flush()
        return rows
    finally:
        if line is not None:
            line.close()


def _failed(app: Holdfast, pipeline: str, stage: str | None) -> int:
    [found] = [one for one in app.status().pipelines if one.name == pipeline]
    states = [one.states for one in found.stages if stage in (None, one.name)]
    states += [one.states for one in found.removed if stage == one.name]
    return sum(counts.get(state, 0) for counts in states for state in BAD)


def _say(results: Results[Any], rows: int, failed: int, *, to_stderr: bool, as_json: bool) -> None:
    if as_json:
        told = {"rows": rows, "cursor": results.cursor, "everything_again": results.is_all_again, "failed": failed}
        click.echo(in_json(told), err=to_stderr)
        return
    if results.is_all_again:
        click.echo("Nothing that the cursor remembers is unchanged: everything was exported again.", err=True)
    if failed:
        click.echo(f"{failed:,} stages of items have failed.", err=True)
    after = f" --since {results.cursor} goes on from here." if results.cursor else ""
    click.echo(f"{rows:,} rows.{after}", err=True)
