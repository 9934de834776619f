"""`holdfast check`: whether a file is in order, without working."""

from __future__ import annotations

import click

from holdfast.cli import options
from holdfast.cli.changes import facts, tell_before
from holdfast.cli.loader import Loaded, load
from holdfast.cli.output import Facts, print_json, printable
from holdfast.engine.changes import Changes
from holdfast.errors import DefinitionError
from holdfast.jobfile import JobFileError
from holdfast.model.stage import check_resources


@click.command(short_help="Say whether a job file, or a file with a pipeline, is in order.")
@click.argument("file", type=options.text)
@click.option("--store", metavar="URL", type=options.text, help="Let resources count that this store defines. It is only read.")
@click.option("--json", "as_json", is_flag=True, help="Answer in JSON.")
def check(file: str, store: str | None, as_json: bool) -> None:
    """Say whether FILE is in order, and if not, everything that is wrong with it, as FILE:LINE:COLUMN: what.

    FILE is a job file (.yaml), a Python file or a dotted module name. What it names is imported, and nothing of it is
    started; no store is touched, unless --store names one to look into. Exit code 4 if something is wrong.
    """
    try:
        found = load(file, store)
        changed = _look_into_store(file, found, store)
    except DefinitionError as error:
        if as_json:
            print_json({"file": file, "ok": False, "errors": _errors(error), "pipelines": []})
        else:
            for line in getattr(error, "lines", [str(error)]):
                click.echo(printable(" ".join(line.split())))
        options.finish(error.exit_code)
        return
    pipelines = _pipelines(found)
    if as_json:
        changes = {} if store is None else {"changes": [facts(one) for one in changed]}
        print_json({"file": file, "ok": True, "errors": [], "pipelines": pipelines, **changes})
    else:
        click.echo(f"{printable(file)} is in order.")
        for one in pipelines:
            click.echo(f"  {one['name']}: {', '.join(one['stages'])}")
        for change in changed:
            tell_before(change)


def _look_into_store(file: str, found: Loaded, store: str | None) -> list[Changes]:
    """What has changed since the store last saw these pipelines. A program may use resources that only a store defines, which
    is known only if that store is looked into."""
    try:
        if store is None:
            check_resources(found.specs, found.resources)
            return []
        with options.existing(found.open(create=False)) as app:
            app.require_resources()
            return app.changes()
    except DefinitionError as error:
        raise DefinitionError(f"{file}: {error}") from None


def _errors(error: DefinitionError) -> list[Facts]:
    if not isinstance(error, JobFileError):
        return [{"file": None, "line": None, "column": None, "path": None, "what": str(error)}]
    return [
        {"file": one.file, "line": one.line, "column": one.column, "path": one.path, "what": one.what}
        for one in error.problems
    ]


def _pipelines(found: Loaded) -> list[Facts]:
    return [{"name": spec.name, "stages": [stage.name for stage in spec.stages]} for spec in found.specs]
