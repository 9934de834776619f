"""Limits: show them, change them while work goes on, pause and resume."""

from __future__ import annotations

from typing import Any

import click

from holdfast.cli import options
from holdfast.cli.output import print_answer, print_json, printable
from holdfast.errors import UsageError
from holdfast.model.durations import seconds
from holdfast.model.tuning import read_value


@click.command(short_help="Pause a pipeline, a stage or a resource.")
@click.argument("name", type=options.text, metavar="PIPELINE[/STAGE]")
@click.option("--resource", is_flag=True, help="Pause a resource: everything that uses it waits.")
@click.option(
    "--for", "length", type=options.text, metavar="TIME", help="Resume automatically after this time: 90m, 2d."
)
@click.option("--reason", type=options.text, default="", help="A reason to show to people.")
@options.common()
def pause(name: str, resource: bool, length: str | None, reason: str, store: str | None, as_json: bool) -> None:
    """Pause a pipeline, or one of its stages: nothing new starts, and running work is finished."""
    with options.open_to_ask(store) as app:
        app.pause(name, until=length, reason=reason, by=options.user(), resource=resource)
    if as_json:
        lasts = None if length is None else seconds(length)
        print_json({"name": name, "resource": resource, "paused": True, "reason": reason, "for_seconds": lasts})
        return
    command = f"holdfast resume {'--resource ' if resource else ''}{printable(name)}"
    click.echo(f"{printable(name)} is paused{f' for {length}' if length else ''}; to let it go on: {command}")


@click.command(short_help="Resume a paused pipeline, stage or resource.")
@click.argument("name", type=options.text, metavar="PIPELINE[/STAGE]")
@click.option("--resource", is_flag=True, help="Resume a resource. This also ends a cool-down and closes its breaker.")
@click.option("--reason", type=options.text, default="", help="A reason to record in the events.")
@options.common()
def resume(name: str, resource: bool, reason: str, store: str | None, as_json: bool) -> None:
    """Resume a pipeline, or one of its stages."""
    with options.open_to_ask(store) as app:
        resumed = app.resume(name, reason=reason, by=options.user(), resource=resource)
    if as_json:
        print_json({"name": name, "resource": resource, "resumed": resumed})
        return
    click.echo(f"{printable(name)} {'goes on' if resumed else 'was not paused'}")


@click.command(short_help="Change limits and guards of running work.")
@click.argument("pipeline", type=options.text)
@click.argument("changes", nargs=-1, required=True, type=options.text, metavar="KEY=VALUE...")
@click.option("--reason", type=options.text, default="", help="A reason to record in the event.")
@options.common()
def tune(pipeline: str, changes: tuple[str, ...], reason: str, store: str | None, as_json: bool) -> None:
    """Change limits and guards of PIPELINE. Running workers apply them within seconds, without losing work.

    Keys are limits (rate, burst, concurrency, budget, budget_per_day, breaker.failures, …) and guards (hours, disk_free, …) of
    the pipeline; extract.rate is a limit of its stage extract, gemini.rate one of the resource gemini. KEY= takes back what
    was set before.
    """
    with options.open_to_ask(store) as app:
        in_force = app.tune(pipeline, dict(map(_read, changes)), reason=reason, by=options.user())
    if as_json:
        print_json({"pipeline": pipeline, "in_force": in_force})
        return
    for key, value in in_force.items():
        click.echo(f"{printable(key)} = {'(no limit)' if value is None else printable(str(value))}")


@click.command(short_help="The limits of resources, their use, and what blocks them.")
@options.common()
def limits(store: str | None, as_json: bool) -> None:
    """Show every resource: its limits, its current use, and what blocks it."""
    with options.open_to_ask(store) as app:
        found = app.limits()
    print_answer(found, as_json=as_json)


def _read(change: str) -> tuple[str, Any]:
    key, equals, value = change.partition("=")
    if not equals or not key.strip():
        raise UsageError(f"{change!r}: write it as KEY=VALUE, like rate=60/min")
    return key.strip(), read_value(value.strip())
