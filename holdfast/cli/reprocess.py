"""`holdfast reprocess` and `holdfast accept`: run again what is stale, or let it stand."""

from __future__ import annotations

from typing import Any

import click
from msgspec.structs import replace

from holdfast.answers.json_of import json_of
from holdfast.answers.plan import OutdatedWorker, StagePlan
from holdfast.cli import options
from holdfast.cli.choose import one_pipeline, some_pipelines
from holdfast.cli.output import print_counts
from holdfast.cli.plan import print_left_out, print_outdated
from holdfast.errors import UsageError
from holdfast.model.facts import Facts
from holdfast.program_file import load

#: What else it may be if nothing is sent back.
NO_ROOM = ", or the first item does not fit the budget"


@click.command(short_help="Run again what is stale.")
@click.argument("file", type=options.text)
@options.stale
@click.option("--stale", "all_stale", is_flag=True, help="Everything that is stale; required if no filter is given.")
@click.option("--all", "everything", is_flag=True, help="Also results that are not stale.")
@options.fast
@click.option(
    "--budget",
    type=options.text,
    metavar="AMOUNT",
    help="At most as many items as this amount pays for, as estimated by `plan`.",
)
@click.option("--limit", type=click.IntRange(min=1), metavar="N", help="At most this many items.")
@options.dry_run_and_reason
@options.common(file=True)
def reprocess(
    file: str,
    pipeline: str | None,
    stage: str | None,
    key: str | None,
    all_stale: bool,
    everything: bool,
    fast: bool,
    budget: str | None,
    limit: int | None,
    dry_run: bool,
    reason: str,
    store: str | None,
    as_json: bool,
) -> None:
    """Send the first stale stage of each item back. Later stages run again if their input changes.

    FILE says what the versions are today: its pipelines are registered, as `run` does. If a new result equals the old
    one, later stages do not run again. Workers do the work. Where several filters are given, all must match.
    """
    if all_stale and everything:
        raise UsageError("--stale and --all exclude each other")
    if not (all_stale or everything or fast or pipeline or stage or key):
        raise UsageError(
            "reprocess would act on everything stale: give a filter, or --stale if that is meant, or --all"
        )
    found = load(file, store)
    names = some_pipelines(file, found.specs, pipeline, stage)
    if (budget is not None or limit is not None) and len(names) > 1:
        # One limit for several would depend on which of them comes first.
        one_pipeline(file, found.specs, pipeline)
    counts: dict[str, int] = {}
    outdated: dict[str, tuple[OutdatedWorker, ...]] = {}
    actions: list[int | None] = []
    left_out: list[StagePlan] = []
    with options.existing(found.open(create=False)) as app:
        for name in names:
            which: dict[str, Any] = {"stage": stage, "key": key, "stale_only": not everything, "fast": fast}
            left_out += [replace(one, stage=f"{name}/{one.stage}") for one in app.plan(name, **which)] if fast else []
            done = app.reprocess(
                name, **which, budget=budget, limit=limit, dry_run=dry_run, by=options.user(), reason=reason
            )
            counts |= {f"{name}/{one}": n for one, n in done.items()}
            actions.append(done.action)
            outdated |= {f"{name}/{one}": workers for one, workers in app.outdated_workers(name).items() if one in done}
    nothing = (
        f"Nothing {'matches' if everything else 'is stale'}{' and is fast' if fast else ''}{NO_ROOM if budget else ''}."
    )
    more: Facts = {"outdated_workers": json_of(outdated)}
    if fast:
        more["left_out"] = {one.stage: dict(one.left_out) for one in left_out if one.left_out}
    print_counts("sent back", counts, actions, dry_run=dry_run, as_json=as_json, nothing=nothing, more=more)
    if not as_json:
        print_left_out(left_out)
        print_outdated(outdated)


@click.command(short_help="Accept stale results as they are.")
@click.argument("file", type=options.text)
@options.stale
@options.dry_run_and_reason
@options.common(file=True)
def accept(
    file: str,
    pipeline: str | None,
    stage: str | None,
    key: str | None,
    dry_run: bool,
    reason: str,
    store: str | None,
    as_json: bool,
) -> None:
    """Mark results of older versions, and results whose input has changed, as good: they count as current from now on.

    FILE says what the versions are today: its pipelines are registered, as `run` does. Where several filters are given,
    all must match.
    """
    found = load(file, store)
    names = some_pipelines(file, found.specs, pipeline, stage)
    counts: dict[str, int] = {}
    actions: list[int | None] = []
    with options.existing(found.open(create=False)) as app:
        for name in names:
            done = app.accept(name, stage=stage, key=key, dry_run=dry_run, by=options.user(), reason=reason)
            counts |= {f"{name}/{one}": n for one, n in done.items()}
            actions.append(done.action)
    nothing = "Nothing is stale."
    print_counts("accepted", counts, actions, dry_run=dry_run, as_json=as_json, nothing=nothing)
