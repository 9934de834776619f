"""`holdfast plan`: what is stale, and what it would take to run it again."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence

import click

from holdfast.cli import options
from holdfast.cli.amounts import about, priced
from holdfast.cli.changes import facts, tell_before
from holdfast.cli.choose import some_pipelines
from holdfast.cli.output import Facts, counted, length, print_json, print_table, printable
from holdfast.cli.progress_line import ProgressLine
from holdfast.engine.on_hold import Outdated, spoken_of
from holdfast.engine.stale import FAST_SECONDS, UNSURE, StageForecast
from holdfast.model.money import spoken
from holdfast.program_file import load

_WHY = ("version", "input changed", "upstream")
_MONEY = ("cost", "spread", "perhaps_cost")


@click.command(short_help="What is stale, and what it would cost and take to run it again.")
@click.argument("file", type=options.text)
@options.stale
@options.fast
@options.common(file=True)
def plan(
    file: str, pipeline: str | None, stage: str | None, key: str | None, fast: bool, store: str | None, as_json: bool
) -> None:
    """Say what is stale, why, and what `holdfast reprocess` would run, cost and take, from what was recorded.

    FILE says what the versions are today; nothing is registered. What else has changed in its pipelines is said, too.
    Perhaps: only if the result of a stage before it changes. ± is one standard deviation. Time is that of handlers, one
    after another.
    """
    loaded = load(file, store)
    names = some_pipelines(file, loaded.specs, pipeline, stage)
    with options.existing(loaded.open(create=False)) as app:
        progress, reasons = ProgressLine(), set()

        def on_walk(why: str, looked_at: int) -> None:
            reasons.add(why)
            progress.draw(f"{looked_at:,} items looked at, because {why}")

        forecasts = {name: app.plan(name, stage=stage, key=key, fast=fast, on_walk=on_walk) for name in names}
        progress.close()
        outdated = {name: app.outdated_workers(name) for name in names}
        changed = [one for one in app.changes() if one.pipeline in names]
    total = _add_up([one for found in forecasts.values() for one in found])
    if as_json:
        told = [
            {"name": name, "stages": [{**_facts(one), **_workers(outdated[name], one.stage)} for one in found]}
            for name, found in forecasts.items()
        ]
        changes = [facts(one) for one in changed]
        print_json({"pipelines": told, "total": priced(total, *_MONEY), "changes": changes})
    elif not any(forecasts.values()):
        click.echo("Nothing is stale.")
    else:
        for name, found in forecasts.items():
            _print_pipeline(name, found)
            print_outdated(outdated[name], {one.stage for one in found})
        _print_total(total)
    for change in changed if not as_json else ():
        tell_before(change)
    if UNSURE in reasons:
        click.echo(
            f"Every item was looked at, because {UNSURE}. `holdfast db check --repair`, once, makes this quick.",
            err=True,
        )


def _facts(one: StageForecast) -> Facts:
    """A forecast as JSON has it; amounts are money in millionths still."""
    return {
        "stage": one.stage,
        "why": dict(one.why),
        **priced(_add_up([one]), *_MONEY),
        "left_out": dict(one.left_out),
        **priced({"left_out_cost": one.left_out_cost}, "left_out_cost"),
    }


def _workers(outdated: Mapping[str, Sequence[Outdated]], stage: str) -> Facts:
    return {"outdated_workers": [one._asdict() for one in outdated.get(stage, ())]}


def _add_up(found: Sequence[StageForecast]) -> Facts:
    return {
        "sure": sum(one.sure for one in found),
        "perhaps": sum(one.perhaps for one in found),
        "cost": sum(one.cost for one in found),
        "spread": round(math.hypot(*(one.spread for one in found))),
        "perhaps_cost": sum(one.perhaps_cost for one in found),
        "handler_seconds": sum(one.took_us for one in found) / 1e6,
    }


def _print_pipeline(name: str, found: Sequence[StageForecast]) -> None:
    click.echo(name if found else f"{name}: nothing is stale")
    rows = [
        [
            one.stage,
            counted(one.why, _WHY),
            one.sure,
            one.perhaps,
            about(one.cost, one.spread),
            spoken(one.perhaps_cost) if one.perhaps else "-",
            length(one.took_us / 1e6) if one.sure else "-",
        ]
        for one in found
        if one.why
    ]
    if rows:
        head = ["stage", "why", "run", "perhaps", "cost", "perhaps more", "handler time"]
        print_table(head, rows, indent="  ", right=head[4:], least=("handler time", "perhaps more"))
    print_left_out(found)


def print_left_out(found: Sequence[StageForecast]) -> None:
    """What is stale and not fast, and why it is not."""
    for one in found:
        if n := one.left_out["cost"]:
            cost = (
                f"may cost {spoken(one.left_out_cost)} in all" if one.left_out_cost else "have stages with an estimate"
            )
            click.echo(f"  left out: {n:,} at {one.stage}, which {cost}, with what follows")
        if n := one.left_out["time"]:
            click.echo(
                f"  left out: {n:,} at {one.stage}, which take more than {FAST_SECONDS} s each, with what follows"
            )


def _print_total(total: Facts) -> None:
    perhaps = f", perhaps {total['perhaps']:,} more" if total["perhaps"] else ""
    more = f", perhaps {spoken(total['perhaps_cost'])} more" if total["perhaps_cost"] else ""
    click.echo(
        f"total: {total['sure']:,} to run{perhaps}; cost {about(total['cost'], total['spread'])}{more}; "
        f"handler time {length(total['handler_seconds'])}"
    )


def print_outdated(outdated: Mapping[str, Sequence[Outdated]], stages: Iterable[str]) -> None:
    """Name the living workers that would do work of these stages with another version of the code."""
    for stage in sorted(outdated.keys() & set(stages)):
        waits = "work that is sent back waits for one with the new version"
        click.echo(f"{stage}: {printable(spoken_of(outdated[stage]))}; {waits}")
