"""`holdfast forget`: reject recorded answers of paid calls that are no good."""

from __future__ import annotations

from typing import Any

import click

from holdfast.cli import options
from holdfast.cli.output import print_counts
from holdfast.errors import UsageError


@click.command(short_help="Reject recorded answers of paid calls: the next attempt calls again.")
@click.argument("keys", nargs=-1, type=options.text, metavar="[KEY]...")
@click.option("--memo", type=options.text, metavar="NAME", help="Only calls with this name.")
@click.option("--pipeline", type=options.text)
@click.option("--stage", type=options.text)
@click.option("--error", type=options.text, metavar="TEXT", help="Part of the error text of the stage.")
@options.group
@click.option("--older-than", type=options.text, metavar="TIME", help="Recorded longer ago than this: 90m, 2d.")
@click.option("--undo", is_flag=True, help="Restore the newest rejected answers.")
@click.option("--all", "everything", is_flag=True, help="Required if neither a KEY nor a filter is given.")
@options.dry_run_and_reason
@options.common()
def forget(
    keys: tuple[str, ...],
    undo: bool,
    everything: bool,
    dry_run: bool,
    reason: str,
    store: str | None,
    as_json: bool,
    memo: str | None,
    **which: Any,
) -> None:
    """Reject recorded answers of stages that are not done, so that the next attempt calls and pays again.

    An answer that was rejected stays in the ledger and can be read with `holdfast show`. In KEYs, * and ? are wildcards. To
    send the items back at the same time: holdfast retry --forget.
    """
    if not everything and not any([*keys, memo, *which.values()]):
        raise UsageError("forget would reject every recorded answer: give a KEY or a filter, or --all if that is meant")
    with options.open_to_ask(store) as app:
        counts = app.forget(
            memo=memo, undo=undo, dry_run=dry_run, by=options.user(), reason=reason, key=keys or None, **which
        )
    print_counts("restored" if undo else "forgotten", counts, [counts.action], dry_run=dry_run, as_json=as_json)
