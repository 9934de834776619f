"""`holdfast actions`: what was done to many items at once, how far it has come; continue it, stop it, undo it."""

from __future__ import annotations

from typing import Any

import click

from holdfast.cli import options
from holdfast.cli.amounts import exact, priced
from holdfast.cli.output import (
    TIMES,
    Facts,
    counted,
    dated,
    details,
    instant,
    iso,
    print_counts,
    print_json,
    print_table,
    printable,
)
from holdfast.errors import UsageError

#: What of a filter is money.
_MONEY = ("budget", "charged")


@click.command(short_help="What was done to many items at once: list, continue, stop, undo.")
@click.argument("number", type=click.IntRange(min=1), metavar="[ID]", required=False)
@click.option("--open", "only_open", is_flag=True, help="Only those that are not finished.")
@click.option("--continue", "go_on", is_flag=True, help="Go on with it until it is done.")
@click.option("--stop", is_flag=True, help="End it where it stands. What it has done stays done.")
@click.option("--undo", is_flag=True, help="Move back what it has moved, as far as that has not moved on since.")
@click.option("--dry-run", is_flag=True, help="With --undo: only count.")
@click.option("--reason", type=options.text, default="", help="With --stop and --undo: goes into the events.")
@click.option("--limit", type=click.IntRange(1, 100_000), default=100, show_default=True)
@click.option(
    "--after", type=options.text, default="", metavar="PLACE", help="With an ID: go on with its items after this."
)
@options.common()
def actions(
    number: int | None,
    only_open: bool,
    go_on: bool,
    stop: bool,
    undo: bool,
    dry_run: bool,
    reason: str,
    limit: int,
    after: str,
    store: str | None,
    as_json: bool,
) -> None:
    """List what retry, cancel, forget, delete, resolve, reprocess and accept have done; with an ID, one of them, and what it
    did to which item.

    An action that was interrupted stays open. A worker goes on with it after a while, and so does --continue.
    """
    if sum((go_on, stop, undo)) > 1 or (number is None and (go_on or stop or undo or after)):
        raise UsageError("give an ID with one of --continue, --stop and --undo")
    who = {"by": options.user(), "reason": reason}
    with options.open_to_ask(store) as app:
        if number is None:
            _print_all(app.actions(only_open=only_open, most=limit), as_json)
        elif undo:
            counts = app.undo_action(number, dry_run=dry_run, **who)
            nothing = f"Nothing that action {number} has moved is still where it was put."
            print_counts("moved back", counts, [counts.action], dry_run=dry_run, as_json=as_json, nothing=nothing)
        else:
            if go_on:
                app.continue_action(number)
            if stop:
                app.stop_action(number, **who)
            _print_one(app.action(number, after=after, most=limit), as_json)


def _told(one: Facts) -> Facts:
    """An action as JSON has it."""
    return {**dated(one, *TIMES), "filter": priced(one["filter"], *_MONEY)}


def _print_all(found: list[Facts], as_json: bool) -> None:
    if as_json:
        print_json([_told(one) for one in found])
    elif not found:
        click.echo("There is none.")
    else:
        rows = [
            [
                one["id"],
                one["kind"],
                one["state"],
                _total(one["counts"]),
                _foreseen(one),
                one["by"],
                instant(one["created_at"]),
                _asked(one),
            ]
            for one in found
        ]
        head = ["id", "kind", "state", "done", "of", "by", "begun", "asked for"]
        print_table(head, rows, right=("done", "of"), least=("begun", "by", "of"))


def _print_one(one: Facts, as_json: bool) -> None:
    if as_json:
        print_json({**_told(one), "items": [dated(item, *TIMES) for item in one["items"]]})
        return
    click.echo(f"action {one['id']}: {one['kind']}, {one['state']}")
    click.echo(f"  asked for: {_asked(one)}")
    reason = f": {printable(one['reason'])}" if one["reason"] else ""
    click.echo(f"  by {printable(one['by']) or 'nobody named'}{reason}")
    ended = f", ended {instant(one['ended_at'])}" if one["ended_at"] else f", last seen at {instant(one['touched_at'])}"
    click.echo(f"  begun {instant(one['created_at'])}{ended}")
    click.echo(
        f"  when it began it meant {_foreseen(one)}; done: {_total(one['counts'])} ({counted(one['counts']) or 'nothing'})"
    )
    if one["error"]:
        click.echo(f"  {printable(one['error'])}")
    if one["state"] == "open":
        click.echo(
            f"  to go on: holdfast actions {one['id']} --continue; to end it: holdfast actions {one['id']} --stop"
        )
    for item in one["items"]:
        where = "/".join(part for part in (item["pipeline"], item["stage"]) if part)
        key = f"  {printable(item['key'])}" if item["key"] is not None else ""
        click.echo(f"{iso(item['at'])}  {item['event']}{f'  {where}' if where else ''}{key}{details(item['data'])}")
    if one["cursor"]:
        click.echo(f"There may be more: --after {one['cursor']}", err=True)


def _total(counts: dict[str, int]) -> str:
    return f"{sum(counts.values()):,}"


def _foreseen(one: Facts) -> str:
    return f"{_total(one['preview']['counts'])}{' or more' if one['preview']['more'] else ''}"


def _asked(one: Facts) -> str:
    """A filter as one line."""
    if one["undoes"] is not None:
        return f"undo of action {one['undoes']}"
    told = ", ".join(f"{name}={printable(_shown(name, value))}" for name, value in one["filter"].items())
    return told or "everything"


def _shown(name: str, value: Any) -> str:
    if name in _MONEY:
        return exact(value)
    return " ".join(map(str, value)) if isinstance(value, list) else str(value)
