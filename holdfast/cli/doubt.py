"""Memos of an item as commands tell them: what is recorded, what is in doubt, and how to settle it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import click

from holdfast.app import Holdfast
from holdfast.cli.amounts import priced
from holdfast.cli.output import TIMES, Facts, compact, dated, printable
from holdfast.model import codec
from holdfast.model.shell import word
from holdfast.model.states import State


def read_memos(app: Holdfast, key: str, pipeline: str, states: Mapping[str, str | None]) -> list[Facts]:
    """The memos of an item, given where its stages are. A call of a stage in progress may be under way: no doubt yet."""
    return [
        {
            **priced(dated(memo, *TIMES), "cost"),
            "value": None if memo["value"] is None else codec.shown(memo["value"]),
            "in_doubt": memo["state"] == "intended" and states.get(memo["stage"]) != State.IN_PROGRESS,
        }
        for memo in app.memos(key, pipeline)
    ]


def print_memos(key: str, pipeline: str, memos: Sequence[Facts]) -> None:
    if memos:
        click.echo("memos")
    for memo in memos:
        click.echo(f"  {memo['stage']}: {printable(memo['name'])}, {_stands(memo)}")
        if memo["in_doubt"]:
            _print_ways(key, pipeline, memo, indent="    ")


def print_doubts(key: str, pipeline: str, memos: Sequence[Facts]) -> None:
    """What a person must settle before the item can go on."""
    for memo in memos:
        click.echo(f"the call {memo['name']!r} is {_stands(memo)}")
        _print_ways(key, pipeline, memo, indent="  ")


def _stands(memo: Facts) -> str:
    if memo["in_doubt"]:
        return f"in doubt since {memo['at']}, idempotency key {memo['idempotency_key']}"
    if memo["state"] == "intended":
        return f"begun {memo['at']}, idempotency key {memo['idempotency_key']}"
    if memo["state"] == "rejected":
        times = "once" if memo["rejections"] == 1 else f"{memo['rejections']} times"
        return f"rejected {times}; the next attempt calls again"
    cost = "" if memo["cost"] is None else f", cost {memo['cost']}"
    return f"recorded {memo['at']}{cost}, value {compact(memo['value'])}"


def _print_ways(key: str, pipeline: str, memo: Facts, *, indent: str) -> None:
    what = f"holdfast resolve --pipeline {word(pipeline)} --memo {word(memo['name'])}"
    end = f"{' --' if key.startswith('-') else ''} {word(key)}"
    click.echo(f"{indent}if the provider has no such call: {what} --not-charged{end}")
    click.echo(f"{indent}if it has, and its answer is lost: {what} --charged AMOUNT{end}")
    click.echo(f"{indent}if it has, with what it returned: {what} --value JSON --charged AMOUNT{end}")
