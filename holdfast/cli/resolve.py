"""`holdfast resolve`: a person says what became of a paid call in doubt."""

from __future__ import annotations

from typing import Any

import click

from holdfast.app import FORGET
from holdfast.cli import options
from holdfast.cli.doubt import word
from holdfast.cli.output import print_json, printable
from holdfast.errors import UsageError, ValueRefused
from holdfast.model import codec
from holdfast.model.states import BAD, State


@click.command(short_help="Say what became of a paid call in doubt.")
@click.argument("key", type=options.text)
@click.option("--memo", type=options.text, required=True, metavar="NAME", help="The name of the call.")
@click.option("--value", type=options.text, metavar="JSON", help="It was made, and this is what it returned.")
@click.option("--cost", type=options.text, metavar="AMOUNT", help="What the call cost, with --value.")
@click.option("--call-again", is_flag=True, help="It was not made: the next attempt makes it.")
@click.option("--pipeline", type=options.text, help="Which one, if several have this key.")
@click.option("--reason", type=options.text, default="", help="Goes into the events.")
@options.common()
def resolve(
    key: str, memo: str, value: str | None, cost: str | None, call_again: bool, pipeline: str | None, reason: str,
    store: str | None, as_json: bool,
) -> None:  # fmt: skip
    """Say what became of a paid call in doubt: its process died after it may have been made.

    The item stays where it is; `holdfast retry` sends it on.
    """
    if (value is None) != call_again:
        raise UsageError("give --value with what the call returned, or --call-again if it was not made")
    if cost is not None and value is None:
        raise UsageError("--cost goes with --value: a call that was not made cost nothing")
    result = FORGET if value is None else _read(value)
    with options.open_to_ask(store) as app:
        stage = app.resolve(key, memo, value=result, cost=cost, pipeline=pipeline, by=options.user(), reason=reason)
        item = app.show(key, pipeline)
    [state] = [one["state"] for one in item["stages"] if one["stage"] == stage] or [None]
    if as_json:
        decided = "call again" if value is None else "value"
        print_json(
            {"pipeline": item["pipeline"], "key": key, "stage": stage, "memo": memo, "decided": decided, "state": state}
        )
        return
    said = "will be called again" if value is None else "has its result"
    click.echo(f"{item['pipeline']} / {printable(key)}, stage {stage}: {printable(memo)} {said}")
    if state in BAD or state == State.CANCELLED:
        pattern = "".join("?" if char == "*" else char for char in key)
        which = f"--pipeline {word(item['pipeline'])} --stage {word(stage)} --key {word(pattern)}"
        click.echo(f"to send it back: holdfast retry {which}")


def _read(value: str) -> Any:
    try:
        result = codec.decode(value)
        codec.encode(result)
    except (ValueError, RecursionError, ValueRefused) as error:
        raise UsageError(f"--value {value[:50]!r}: {error}; give JSON, a text in quotes of its own") from None
    return result
