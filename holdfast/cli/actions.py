"""`holdfast actions`: what was done to many items at once, how far it has come; continue it, stop it, undo it."""

from __future__ import annotations

from typing import Any

import click

from holdfast.cli import options
from holdfast.cli.output import print_answer, print_counts
from holdfast.errors import UsageError


@click.command(short_help="Bulk actions: list, continue, stop, undo.")
@click.argument("number", type=click.IntRange(1, 2**63 - 1), metavar="[ID]", required=False)
@click.option("--open", "only_open", is_flag=True, help="Only actions that are not finished.")
@click.option("--continue", "go_on", is_flag=True, help="Continue it until it is done.")
@click.option("--stop", is_flag=True, help="End it now. What it has done stays done.")
@click.option("--undo", is_flag=True, help="Undo what it did, except where items have moved on since.")
@click.option("--dry-run", is_flag=True, help="With --undo: only count.")
@click.option(
    "--reason", type=options.text, default="", help="With --stop and --undo: a reason to record in the events."
)
@click.option("--limit", type=click.IntRange(1, 100_000), default=100, show_default=True)
@click.option("--after", type=options.text, default="", metavar="PLACE", help="With an ID: continue after this item.")
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
    """List what retry, cancel, forget, delete, resolve, reprocess and accept have done; with an ID, show one action,
    and what it did to which item.

    An action that was interrupted stays open. A worker continues it after a while, and so does --continue.
    """
    if sum((go_on, stop, undo)) > 1 or (number is None and (go_on or stop or undo or after)):
        raise UsageError("give an ID with one of --continue, --stop and --undo")
    who: dict[str, Any] = {"by": options.user(), "reason": reason}
    with options.open_to_ask(store) as app:
        if number is None:
            print_answer(app.actions(only_open=only_open, most=limit), as_json=as_json)
        elif undo:
            counts = app.undo_action(number, dry_run=dry_run, **who)
            nothing = f"Nothing that action {number} has moved is still where it was put."
            print_counts("moved back", counts, [counts.action], dry_run=dry_run, as_json=as_json, nothing=nothing)
        else:
            if go_on:
                app.continue_action(number)
            if stop:
                app.stop_action(number, **who)
            found = app.action(number, after=after, most=limit)
            print_answer(found, as_json=as_json)
            if found.cursor and not as_json:
                click.echo(f"There may be more: --after {found.cursor}", err=True)
