"""`holdfast delete`: remove items for good."""

from __future__ import annotations

import sys
from typing import Any

import click

from holdfast.answers.text_tables import counted
from holdfast.cli import options
from holdfast.cli.output import print_counts
from holdfast.errors import UsageError


@click.command(short_help="Delete items permanently, with everything that belongs to them.")
@click.argument("keys", nargs=-1, type=options.text, metavar="[KEY]...")
@click.option("--pipeline", type=options.text)
@click.option("--stage", type=options.text, help="Items whose stage of this name has started.")
@options.states
@click.option("--error", type=options.text, metavar="TEXT", help="Part of the error text of a stage.")
@options.group
@click.option("--all", "everything", is_flag=True, help="Required if neither a KEY nor a filter is given.")
@click.option("--dry-run", is_flag=True, help="Only count.")
@click.option("--yes", is_flag=True, envvar="HOLDFAST_YES", help="Do not ask for confirmation. [env: HOLDFAST_YES]")
@click.option("--reason", type=options.text, default="", help="A reason to record in the event.")
@options.common()
def delete(
    keys: tuple[str, ...],
    everything: bool,
    dry_run: bool,
    yes: bool,
    reason: str,
    store: str | None,
    as_json: bool,
    **which: Any,
) -> None:
    """Delete items with their data, results, memos, history, and children that belong to no other item.

    This cannot be undone. A worker that is running such an item loses it. The amounts that were spent on the items stay
    in the ledger. In KEYs, * and ? are wildcards.
    """
    if not everything and not any([*keys, *which.values()]):
        raise UsageError("delete would remove every item: give a KEY or a filter, or --all if that is meant")
    with options.open_to_ask(store) as app:
        given: dict[str, Any] = {"key": keys or None, **which}
        if not dry_run and not yes:
            found = app.delete(dry_run=True, **given)
            given["previewed"] = sum(found.values())
            if found and not sys.stdin.isatty():
                raise UsageError(
                    f"this removes {counted(found)} for good: add --yes to do so, or --dry-run to count them"
                )
            if found:
                click.confirm(f"Remove {counted(found)}? It cannot be undone", abort=True, err=True)
        counts = app.delete(by=options.user(), reason=reason, dry_run=dry_run, **given)
    print_counts("deleted", counts, [counts.action], dry_run=dry_run, as_json=as_json)
