"""A person's acts on many stages of items at once: retry, cancel."""

from __future__ import annotations

from typing import Any

import click

from holdfast.answers.text_tables import counted
from holdfast.cli import options
from holdfast.cli.output import print_counts
from holdfast.errors import UsageError

_filtered = options.together(
    click.option("--pipeline", type=options.text),
    click.option("--stage", type=options.text),
    options.states,
    options.keys,
    click.option("--error", type=options.text, metavar="TEXT", help="Part of the error text."),
    options.group,
    click.option(
        "--older-than",
        type=options.text,
        metavar="TIME",
        help="Those that have been in their state for longer than this: 90m, 2d.",
    ),
    click.option("--all", "everything", is_flag=True, help="Required if no filter is given."),
    options.dry_run_and_reason,
)


@click.command(short_help="Run failed, exhausted or cancelled stages again.")
@_filtered
@click.option(
    "--forget", is_flag=True, help="Reject their recorded answers first: the calls are made, and paid for, again."
)
@options.common()
def retry(store: str | None, as_json: bool, **given: Any) -> None:
    """Send stages of items back to pending with all their attempts.

    Without --state: those that are failed, exhausted or cancelled. With --state done or skipped, they run again; with
    --state retry_later, they run now. Where several filters are given, all must match.
    """
    _act("retry", store, as_json, **given)


@click.command(short_help="Cancel open stages.")
@_filtered
@options.common()
def cancel(store: str | None, as_json: bool, **given: Any) -> None:
    """Cancel open stages of items until someone retries them. A worker that is running such a stage loses it.

    Without --state: those that are pending, retry_later or in_progress. Where several filters are given, all must
    match.
    """
    _act("cancel", store, as_json, **given)


def _act(
    verb: str,
    store: str | None,
    as_json: bool,
    *,
    everything: bool,
    dry_run: bool,
    reason: str,
    forget: bool = False,
    **which: Any,
) -> None:
    if not everything and not any(which.values()):
        raise UsageError(f"{verb} would act on everything: give a filter, or --all if that is meant")
    done: list[int | None] = []
    with options.open_to_ask(store) as app:
        if forget:
            filters = {name: value for name, value in which.items() if name != "states"}
            forgotten = app.forget(by=options.user(), reason=reason, dry_run=dry_run, **filters)
            done.append(forgotten.action)
            if not as_json and forgotten:
                click.echo(f"{'would be ' if dry_run else ''}forgotten: {counted(forgotten)}")
        act = app.retry if verb == "retry" else app.cancel
        counts = act(by=options.user(), reason=reason, dry_run=dry_run, **which)
    words = {"retry": "sent back", "cancel": "cancelled"}[verb]
    numbers = [*done, counts.action] if as_json else [counts.action]
    print_counts(words, counts, numbers, dry_run=dry_run, as_json=as_json)
