"""How a run ended, for people: a row per stage, the first failures, and what to do next."""

from __future__ import annotations

import shlex

import click

from holdfast.app import Holdfast, Summary
from holdfast.cli.output import Facts, length, print_table, printable, shortened
from holdfast.model.states import BAD, OPEN, State

#: How many failures the summary tells of.
SHOWN = 5

_COLUMNS = (State.DONE, State.SKIPPED, State.FAILED, State.EXHAUSTED, State.CANCELLED)


def read_failures(app: Holdfast, summary: Summary) -> list[Facts]:
    """The first few stages of items that ended badly."""
    found: list[Facts] = []
    for pipeline, stage in _stages(summary):
        for state in sorted(BAD):
            if stage["states"].get(state) and len(found) < SHOWN:
                found += app.items(pipeline=pipeline["name"], stage=stage["name"], state=state, most=SHOWN - len(found))
    return found


def print_summary(file: str, summary: Summary, failures: list[Facts]) -> None:
    stages = _stages(summary)
    left = sum(_left(stage) for _, stage in stages)
    rows = [
        [
            f"{pipeline['name']}/{stage['name']}",
            *(stage["states"].get(state, 0) for state in _COLUMNS),
            *([_left(stage)] if left else []),
            length(stage["timings"]["mean_seconds"]) if stage["timings"]["count"] else "-",
        ]
        for pipeline, stage in stages
    ]
    head = ["stage", *_COLUMNS, *(["left"] if left else []), "mean time"]
    print_table(head, rows, least=("mean time", "skipped", "cancelled"))
    if failures:
        _print_failures(summary, failures)
    for pipeline, stage in stages:
        for one in stage["on_hold"]:
            where = f"{pipeline['name']}/{stage['name']}"
            click.echo(f"{where} has work on hold: {printable(one['reason'])}; to let it run: {one['do']}")
    if summary.interrupted:
        click.echo(f"Interrupted with {left:,} left to do: the same command goes on from here.")
    elif not any(stage["states"] for _, stage in stages):
        click.echo(f"There are no items yet. To add some: holdfast add {shlex.quote(file)} KEY…")


def _print_failures(summary: Summary, failures: list[Facts]) -> None:
    for one in failures:
        said = shortened(one["error"] or "no error was told", 200)
        click.echo(f"{one['state']}: {printable(one['key'])} at {one['pipeline']}/{one['stage']}: {said}")
    bad = {state for _, stage in _stages(summary) for state in BAD if stage["states"].get(state)}
    words = [f"--state {state}" for state in sorted(bad)]
    if len(summary.pipelines) == 1:
        words.insert(0, f"--pipeline {summary.pipelines[0]['name']}")
    if summary.bad > len(failures):
        click.echo(f"… and {summary.bad - len(failures):,} more; to list them: holdfast items {' '.join(words)}")
    click.echo(
        f"To see one: holdfast show KEY. To send them back once the cause is gone: holdfast retry {' '.join(words)}"
    )


def _stages(summary: Summary) -> list[tuple[Facts, Facts]]:
    return [(pipeline, stage) for pipeline in summary.pipelines for stage in pipeline["stages"]]


def _left(stage: Facts) -> int:
    return sum(stage["states"].get(state, 0) for state in OPEN)
