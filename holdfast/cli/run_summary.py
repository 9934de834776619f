"""How a run ended, for people: a row per stage, the first failures, and what to do next."""

from __future__ import annotations

import shlex

import click

from holdfast.answers.run_summary import Summary
from holdfast.answers.status import PipelineStatus, StageStatus
from holdfast.answers.text_tables import shortened, spoken
from holdfast.cli.output import print_table, printable
from holdfast.model.states import BAD, OPEN, State

_COLUMNS = (State.DONE, State.SKIPPED, State.FAILED, State.EXHAUSTED, State.CANCELLED)


def print_summary(file: str, summary: Summary) -> None:
    stages = _stages(summary)
    left = sum(_left(stage) for _, stage in stages)
    rows = [
        [
            f"{pipeline.name}/{stage.name}",
            *(stage.states.get(state, 0) for state in _COLUMNS),
            *([_left(stage)] if left else []),
            "-" if stage.timings.mean is None else spoken(stage.timings.mean),
        ]
        for pipeline, stage in stages
    ]
    head = ["stage", *_COLUMNS, *(["left"] if left else []), "mean time"]
    print_table(head, rows, least=("mean time", "skipped", "cancelled"))
    if summary.failures:
        _print_failures(summary)
    for pipeline, stage in stages:
        for one in stage.on_hold:
            where = f"{pipeline.name}/{stage.name}"
            click.echo(f"{where} has work on hold: {printable(one.reason)}; to let it run: {one.do}")
    if summary.interrupted:
        click.echo(f"Interrupted with {left:,} left to do: the same command goes on from here.")
    elif not any(stage.states for _, stage in stages):
        click.echo(f"There are no items yet. To add some: holdfast add {shlex.quote(file)} KEY…")


def _print_failures(summary: Summary) -> None:
    for one in summary.failures:
        error = shortened(one.error or "no error was recorded", 200)
        click.echo(f"{one.state}: {printable(one.key)} at {one.pipeline}/{one.stage}: {error}")
    bad = {state for _, stage in _stages(summary) for state in BAD if stage.states.get(state)}
    words = [f"--state {state}" for state in sorted(bad)]
    if len(summary.pipelines) == 1:
        words.insert(0, f"--pipeline {summary.pipelines[0].name}")
    if more := summary.failed - len(summary.failures):
        click.echo(f"… and {more:,} more; to list them: holdfast items {' '.join(words)}")
    click.echo(
        f"To see one: holdfast show KEY. To send them back once the cause is gone: holdfast retry {' '.join(words)}"
    )


def _stages(summary: Summary) -> list[tuple[PipelineStatus, StageStatus]]:
    return [(pipeline, stage) for pipeline in summary.pipelines for stage in pipeline.stages]


def _left(stage: StageStatus) -> int:
    return sum(stage.states.get(state, 0) for state in OPEN)
