"""Questions about many items: status, items. They change nothing, and make neither a file nor tables."""

from __future__ import annotations

import click

from holdfast.cli import options
from holdfast.cli.output import (
    TIMES,
    Facts,
    counted,
    dated,
    instant,
    length,
    print_json,
    print_table,
    printable,
    shortened,
    told_pipelines,
    told_workers,
)
from holdfast.model.states import OPEN, State

# status ---------------------------------------------------------------------------------------------------------------


@click.command(short_help="How many items are in which state, how long stages take, who works.")
@options.common()
def status(store: str | None, as_json: bool) -> None:
    """Say how many items are in which state at each stage, how long attempts take, and who works."""
    with options.open_to_ask(store) as app:
        pipelines, workers, wrong = app.status(), app.workers(), app.cannot_write()
    if as_json:
        print_json({"pipelines": told_pipelines(pipelines), "workers": told_workers(workers), "cannot_write": wrong})
        return
    if wrong:
        click.echo(printable(f"{wrong[0].upper()}{wrong[1:]}."))
    if not pipelines:
        click.echo("There are no pipelines in this store yet.")
    for pipeline in pipelines:
        _print_pipeline(pipeline)
    _print_workers(workers)


def _print_pipeline(pipeline: Facts) -> None:
    click.echo(pipeline["name"])
    stages = pipeline["stages"]
    shown = [
        state
        for state in State
        if state in (State.PENDING, State.DONE) or any(stage["states"].get(state) for stage in stages)
    ]
    rows = []
    for stage in stages:
        times = stage["timings"]
        known = (
            [length(times[name]) for name in ("mean_seconds", "p90_seconds", "max_seconds")]
            if times["count"]
            else "---"
        )
        rows.append([stage["name"], *(stage["states"].get(state, 0) for state in shown), *known])
    print_table(["stage", *shown, "mean", "p90", "max"], rows, indent="  ", least=("max", "p90", "mean"))
    for stage in stages:
        if stage["held"]:
            until = f" (until {instant(stage['held']['until'])})" if stage["held"]["until"] else ""
            click.echo(f"  {stage['name']} waits: {printable(stage['held']['text'])}{until}")
        for one in stage["on_hold"]:
            click.echo(f"  {stage['name']} has work on hold: {printable(one['reason'])}; to let it run: {one['do']}")
        if stage["backfilling"]:
            click.echo(f"  {stage['name']} is new and is being back-filled")
    for stage in pipeline["removed"]:
        if stage["states"]:
            click.echo(f"  {stage['name']} was removed and still holds {counted(stage['states'])}")
            if any(stage["states"].get(state) for state in OPEN):
                where = f"--pipeline {pipeline['name']} --stage {stage['name']}"
                click.echo(f"    to set its open ones aside: holdfast cancel {where}")


def _print_workers(workers: list[Facts]) -> None:
    if not workers:
        click.echo("No worker is alive.")
        return
    click.echo("workers")
    rows = [
        [
            shortened(one["name"], 40),
            one["process"],
            "alive" if one["alive"] else "silent",
            one.get("in_hand", 0),
            instant(one["started_at"]),
            instant(one["beat_at"]),
            shortened(", ".join(one["stages"]), 60),
        ]
        for one in workers
    ]
    head = ["name", "process", "is", "in hand", "since", "last beat", "stages"]
    print_table(head, rows, indent="  ", least=("since", "process", "last beat"))


# items ----------------------------------------------------------------------------------------------------------------


@click.command(short_help="List items.")
@click.option("--pipeline", type=options.text)
@click.option("--stage", type=options.text)
@click.option(
    "--state",
    "states",
    type=click.Choice([state.value for state in State]),
    multiple=True,
    help="Those of which a stage is in this state; several times for any of them.",
)
@options.keys
@click.option("--error", type=options.text, metavar="TEXT", help="A part of the error.")
@options.group
@click.option("--limit", type=click.IntRange(1, 100_000), default=100, show_default=True)
@click.option(
    "--after", type=options.text, default="0", metavar="ID[/STAGE]", help="Go on after this item, or stage of an item."
)
@options.common()
def items(
    pipeline: str | None,
    stage: str | None,
    states: tuple[str, ...],
    key: tuple[str, ...],
    error: str | None,
    group: str | None,
    limit: int,
    after: str,
    store: str | None,
    as_json: bool,
) -> None:
    """List items in the order they were added; with --stage, --state, --error or --group, stages of items.

    The end of a page says with which --after the next one begins; in JSON it is the `cursor` of the last entry.
    """
    with options.open_to_ask(store) as app:
        found = app.items(
            pipeline=pipeline, stage=stage, state=states, key=key, error=error, group=group, after=after, most=limit
        )
    if as_json:
        print_json([dated(one, *TIMES) for one in found])
        return
    if stage is None and not states and error is None and group is None:
        rows = [[one["id"], one["pipeline"], one["key"], one["status"], instant(one["updated_at"])] for one in found]
        print_table(["id", "pipeline", "key", "status", "updated"], rows, least=("updated",))
    else:
        rows = [
            [
                one["id"],
                f"{one['pipeline']}/{one['stage']}",
                one["key"],
                one["state"],
                one["attempts"],
                instant(one["updated_at"]),
                shortened(one["error"] or "", 100),
            ]
            for one in found
        ]
        head = ["id", "stage", "key", "state", "attempts", "updated", "error"]
        print_table(head, rows, least=("updated", "attempts"))
    if len(found) == limit:
        click.echo(f"There may be more: --after {found[-1]['cursor']}", err=True)
