"""`holdfast plan`: what is stale, and what it would take to run it again."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import click

from holdfast.answers.json_of import json_of
from holdfast.answers.plan import Effort, OutdatedWorker, Plan, StagePlan
from holdfast.cli import options
from holdfast.cli.choose import some_pipelines
from holdfast.cli.confirm_changes import tell_before
from holdfast.cli.output import print_json, printable, terminal_width
from holdfast.cli.progress_line import ProgressLine
from holdfast.engine.on_hold import Outdated, spoken_of
from holdfast.engine.plan_and_reprocess import FAST_SECONDS, UNSURE
from holdfast.model.money import spoken
from holdfast.program_file import load


@click.command(short_help="What is stale, and what reprocessing it would cost.")
@click.argument("file", type=options.text)
@options.stale
@options.fast
@options.common(file=True)
def plan(
    file: str, pipeline: str | None, stage: str | None, key: str | None, fast: bool, store: str | None, as_json: bool
) -> None:
    """Show what is stale and why, and what `holdfast reprocess` would run, cost and take, judging from recorded
    results.

    FILE says what the versions are today; nothing is registered. The command also shows what else has changed in the
    pipelines of FILE. "Perhaps" counts what runs only if the result of an earlier stage changes. ± is one standard
    deviation. Times are those of the handlers, one after another.
    """
    loaded = load(file, store)
    names = some_pipelines(file, loaded.specs, pipeline, stage)
    with options.existing(loaded.open(create=False)) as app:
        progress, reasons = ProgressLine(), set()

        def on_walk(why: str, looked_at: int) -> None:
            reasons.add(why)
            progress.draw(f"{looked_at:,} items looked at, because {why}")

        plans = {name: app.plan(name, stage=stage, key=key, fast=fast, on_walk=on_walk) for name in names}
        progress.close()
        changed = [one for one in app.changes() if one.pipeline in names]
    total = Effort.total_of([one for found in plans.values() for one in found])
    if as_json:
        stages = [{"name": name, "stages": one.json()} for name, one in plans.items()]
        print_json({"pipelines": stages, "total": total.json(), "changes": json_of(changed)})
    elif not any(plans.values()):
        click.echo("Nothing is stale.")
    else:
        for name, found in plans.items():
            _print_plan(name, found)
        click.echo(str(total))
    for change in changed if not as_json else ():
        tell_before(change)
    if UNSURE in reasons:
        click.echo(
            f"Every item was looked at, because {UNSURE}. `holdfast db check --repair`, once, makes this quick.",
            err=True,
        )


def _print_plan(name: str, found: Plan) -> None:
    click.echo(name if found else f"{name}: nothing is stale")
    for line in found.lines(terminal_width()) if found else ():
        click.echo(line)
    print_left_out(found)
    print_outdated({one.stage: one.outdated_workers for one in found})


def print_left_out(found: Iterable[StagePlan]) -> None:
    """What is stale and not fast, and why it is not."""
    for one in found:
        if n := one.left_out.get("cost"):
            may_cost = (
                f"may cost {spoken(one.left_out_cost)} in all" if one.left_out_cost else "have stages with an estimate"
            )
            click.echo(f"  left out: {n:,} at {one.stage}, which {may_cost}, with what follows")
        if n := one.left_out.get("time"):
            click.echo(
                f"  left out: {n:,} at {one.stage}, which take more than {FAST_SECONDS} s each, with what follows"
            )


def print_outdated(outdated: Mapping[str, Sequence[OutdatedWorker]]) -> None:
    """Name the living workers that would do work of these stages with another version of the code."""
    for stage, workers in sorted(outdated.items()):
        if workers:
            who = printable(spoken_of([Outdated(one.worker, one.version) for one in workers]))
            click.echo(f"{stage}: {who}; work that is sent back waits for one with the new version")
