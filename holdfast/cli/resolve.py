"""`holdfast resolve`: what became of paid calls in doubt."""

from __future__ import annotations

from typing import Any

import click

from holdfast.app import UNKNOWN
from holdfast.cli import options
from holdfast.cli.output import print_counts, print_json, printable
from holdfast.errors import UsageError, ValueRefused
from holdfast.model import codec
from holdfast.model.key_pattern import exactly
from holdfast.model.shell_quoting import word
from holdfast.model.states import BAD, State


@click.command(short_help="Settle paid calls in doubt.")
@click.argument("key", type=options.text, required=False)
@click.option("--memo", type=options.text, metavar="NAME", help="The name of the call; needed with a KEY.")
@click.option("--value", type=options.text, metavar="JSON", help="The call was made and returned this.")
@click.option(
    "--charged", type=options.text, metavar="AMOUNT", help="What was charged. Without --value, the call is made again."
)
@click.option("--not-charged", is_flag=True, help="Nothing was charged: the next attempt makes the call.")
@click.option("--pipeline", type=options.text)
@click.option("--stage", type=options.text, help="Without a KEY: all calls in doubt at this stage.")
@click.option("--key", "pattern", type=options.text, metavar="PATTERN", help="Without a KEY: calls of these items.")
@click.option("--older-than", type=options.text, metavar="TIME", help="Without a KEY: calls made longer ago than this.")
@click.option("--all", "everything", is_flag=True, help="Required if neither a KEY nor a filter is given.")
@click.option("--dry-run", is_flag=True, help="Without a KEY: only count.")
@click.option("--reason", type=options.text, default="", help="A reason to record in the events.")
@options.common()
def resolve(
    key: str | None,
    memo: str | None,
    value: str | None,
    charged: str | None,
    not_charged: bool,
    pipeline: str | None,
    stage: str | None,
    pattern: str | None,
    older_than: str | None,
    everything: bool,
    dry_run: bool,
    reason: str,
    store: str | None,
    as_json: bool,
) -> None:
    """Settle a paid call in doubt: it was started, but no one knows whether it was made and charged.

    With a KEY, settles one call; without, all calls in doubt that match the filters. Items that are on hold because of
    such a call continue. Others stay where they are; `holdfast retry` lets them run again.
    """
    if (value is None and charged is None) != not_charged:
        raise UsageError("give --value with what it returned, --charged with what it cost, or --not-charged")
    amount = "0" if not_charged else charged
    who = {"by": options.user(), "reason": reason}
    if key is None:
        which: dict[str, Any] = {"pipeline": pipeline, "stage": stage, "key": pattern, "older_than": older_than}
        if value is not None:
            raise UsageError("--value is the answer of one call: name its KEY")
        if not everything and not any([*which.values(), memo]):
            raise UsageError(
                "resolve would settle everything that is in doubt: give a filter, or --all if that is meant"
            )
        with options.open_to_ask(store) as app:
            counts = app.resolve_many(charged=amount or "0", memo=memo, dry_run=dry_run, **who, **which)
        print_counts("settled", counts, [counts.action], dry_run=dry_run, as_json=as_json)
        return
    if memo is None or stage or pattern or older_than or dry_run:
        raise UsageError("a KEY goes with --memo NAME, and with none of the filters")
    result = UNKNOWN if value is None else _read(value)
    with options.open_to_ask(store) as app:
        found = app.resolve(key, memo, value=result, charged=amount, pipeline=pipeline, **who)
        item = app.show(key, pipeline)
    [state] = [one.state for one in item.stages if one.stage == found] or [None]
    if as_json:
        decided = "not charged" if not_charged else "charged" if value is None else "value"
        print_json(
            {"pipeline": item.pipeline, "key": key, "stage": found, "memo": memo, "decided": decided, "state": state}
        )
        return
    said = "will be called again" if value is None else "has its result"
    click.echo(f"{item.pipeline} / {printable(key)}, stage {found}: {printable(memo)} {said}")
    if state in BAD or state == State.CANCELLED:
        filters = f"--pipeline {word(item.pipeline)} --stage {word(found)} --key {word(exactly(key))}"
        click.echo(f"to send it back: holdfast retry {filters}")


def _read(value: str) -> Any:
    try:
        result = codec.decode(value)
        codec.encode(result)
    except (ValueError, RecursionError, ValueRefused) as error:
        raise UsageError(f"--value {value[:50]!r}: {error}; give JSON, a text in quotes of its own") from None
    return result
