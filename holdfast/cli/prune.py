"""`holdfast prune`: forget what is old, and what nothing refers to."""

from __future__ import annotations

import sys

import click

from holdfast.app import Holdfast
from holdfast.cli import options, times
from holdfast.cli.output import print_json
from holdfast.errors import UsageError


@click.command(short_help="Delete old events, items that ended long ago, and unreferenced blobs.")
@click.option(
    "--events-older-than", type=options.text, metavar="TIME", help="Events older than this: 90d. Costs are kept."
)
@click.option(
    "--items-older-than",
    type=options.text,
    metavar="TIME",
    help="Items that ended longer ago than this, with everything that belongs to them: 365d.",
)
@click.option("--dry-run", is_flag=True, help="Only count. This reads all events and items.")
@click.option(
    "--yes", is_flag=True, envvar="HOLDFAST_YES", help="Delete everything without asking. [env: HOLDFAST_YES]"
)
@options.blobs
@options.common()
def prune(
    events_older_than: str | None,
    items_older_than: str | None,
    dry_run: bool,
    yes: bool,
    blobs: str | None,
    store: str | None,
    as_json: bool,
) -> None:
    """Delete old events, and items all of whose stages ended long ago, with everything that belongs to them. Also
    delete content that was kept with ctx.keep, once it is a day old and nothing refers to it any more.

    The amounts that were spent stay in the ledger. If the key of a deleted item is added again, the item starts from
    the beginning. The command works in small steps: if it is interrupted, run it again. An age of 0 deletes everything
    that has ended, and asks first. A dry run does not count children of items that would be deleted, because they are
    deleted after their parents.
    """
    events = None if events_older_than is None else times.age(events_older_than, what="--events-older-than")
    items = None if items_older_than is None else times.age(items_older_than, what="--items-older-than")
    everything = [name for name, age in (("all events", events), ("all items that have ended", items)) if age == 0]
    with options.open_to_ask(store, blobs=blobs) as app:
        if events is None and items is None and not app.has_blobs:
            raise UsageError("nothing to forget: give --events-older-than, --items-older-than or --blobs")
        if everything and not (dry_run or yes):
            _ask(app, events, items, " and ".join(everything))
        counts = app.prune(events_older_than=events, items_older_than=items, dry_run=dry_run)
    if as_json:
        print_json({"dry_run": dry_run, **counts})
    else:
        click.echo(f"{'would be forgotten' if dry_run else 'forgotten'}: {_told(counts, events, items)}")


def _ask(app: Holdfast, events: float | None, items: float | None, everything: str) -> None:
    """Ask a person at a terminal; anybody else has to say it in the command."""
    if not _at_a_terminal():
        raise UsageError(f"this forgets {everything}: add --yes to do so, or --dry-run to count them")
    counts = app.prune(events_older_than=events, items_older_than=items, dry_run=True)
    click.confirm(f"Forget {_told(counts, events, items)}? It cannot be undone", abort=True, err=True)


def _at_a_terminal() -> bool:
    return sys.stdin.isatty()


def _told(counts: dict[str, int], events: float | None, items: float | None) -> str:
    asked = {"events": events is not None, "items": items is not None, "blobs": bool(counts["blobs"])}
    asked["blobs"] |= not any(asked.values())
    return ", ".join(f"{counts[name]:,} {name}" for name, wanted in asked.items() if wanted)
