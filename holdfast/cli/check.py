"""`holdfast check`: whether a file is in order, without working."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from holdfast.answers.json_of import json_of
from holdfast.cli import options
from holdfast.cli.confirm_changes import tell_before
from holdfast.cli.loop import find_loops
from holdfast.cli.output import print_json, printable
from holdfast.errors import DefinitionError
from holdfast.jobfile import JobFileError
from holdfast.model.definition_changes import Changes
from holdfast.model.facts import Facts
from holdfast.model.stage import check_resources
from holdfast.pipeline import Pipeline
from holdfast.program_file import JOB_FILES, Loaded, all_of, load, load_module, load_pipelines

if TYPE_CHECKING:
    from holdfast.adopt.loop.loop import Loop


@click.command(short_help="Check a job file, or a file with pipelines or loops.")
@click.argument("file", type=options.text)
@click.option(
    "--store",
    metavar="URL",
    type=options.text,
    help="Accept resources that this store defines. The store is only read.",
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def check(file: str, store: str | None, as_json: bool) -> None:
    """Check FILE, and list everything that is wrong with it as FILE:LINE:COLUMN: problem.

    FILE is a job file (.yaml), a Python file or a dotted module name. The command imports what FILE names, but starts
    none of it. It opens no store, unless --store names one to read. Exit code 4 if something is wrong.

    If FILE has Loops over tables of your own (or MODULE:OBJECT does, as for `holdfast loop`), it checks the locking,
    transitions, failure status, transactions, batch size, instances and logging of each, and lists what is missing. If
    anything is missing, the exit code is 4, too.
    """
    try:
        found, loops = _load(file, store)
        changed = [] if found is None else _look_into_store(file, found, store)
    except DefinitionError as error:
        if as_json:
            print_json({"file": file, "ok": False, "errors": _errors(error), "pipelines": [], "loops": []})
        else:
            for line in getattr(error, "lines", [str(error)]):
                click.echo(printable(" ".join(line.split())))
        options.finish(error.exit_code)
        return
    pipelines = [] if found is None else _pipelines(found)
    checked = _check_loops(loops)
    lacking = sum(not one["ok"] for one in checked)
    if as_json:
        changes = {} if store is None else {"changes": json_of(changed)}
        print_json({"file": file, "ok": not lacking, "errors": [], "pipelines": pipelines, "loops": checked, **changes})
    else:
        said = f": not in order, {lacking} of {len(checked)} loops lack something" if lacking else " is in order"
        click.echo(f"{printable(file)}{said}.")
        for one in pipelines:
            click.echo(f"  {one['name']}: {', '.join(one['stages'])}")
        for change in changed:
            tell_before(change)
        for loop in checked:
            _tell_loop(loop)
    if lacking:
        options.finish(DefinitionError.exit_code)


def _load(file: str, store: str | None) -> tuple[Loaded | None, list[Loop]]:
    """The pipelines and the loops of a file; either may be missing, but not both."""
    if Path(file).suffix.lower() in JOB_FILES:
        return load(file, store), []
    if ":" in file and not Path(file).exists():
        return None, find_loops(file)
    module = load_module(file)
    # Whoever has a loop has imported its module, which needs packages that pipelines do without.
    there = sys.modules.get("holdfast.adopt.loop.loop")
    loops: list[Loop] = [] if there is None else all_of(module, there.Loop)
    return load_pipelines(module, file, store) if all_of(module, Pipeline) or not loops else None, loops


def _check_loops(loops: list[Loop]) -> list[Facts]:
    if not loops:
        return []
    from holdfast.adopt.loop.checklist import checklist

    found = []
    for loop in loops:
        points = checklist(loop)
        listed = [{"name": one.name, "ok": one.ok, "how": one.how, "missing": list(one.missing)} for one in points]
        ok = all(one.ok for one in points)
        found.append({"name": loop.name, "table": loop.mapping.name, "ok": ok, "points": listed})
    return found


def _tell_loop(loop: Facts) -> None:
    click.echo(f"  {printable(loop['name'])}: {'' if loop['ok'] else 'not '}in order")
    for one in loop["points"]:
        click.echo(f"    {'ok     ' if one['ok'] else 'missing'}  {one['name']:15} {printable(one['how'])}")
        for what in one["missing"]:
            click.echo(f"{' ' * 29}{printable(what)}")


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
