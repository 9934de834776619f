"""`holdfast events`: what happened, and what happens. It changes nothing, and makes neither a file nor tables."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator
from typing import Any

import click

from holdfast.answers.event import LoggedEvent
from holdfast.app import Holdfast
from holdfast.cli import options, times
from holdfast.cli.output import as_json as written
from holdfast.cli.output import print_answer
from holdfast.errors import UsageError

#: While following: how often to look, and how long an event may take to commit after others with higher numbers.
FOLLOW_SECONDS = 0.5
STRAGGLER_SECONDS = 5.0
PAGE = 1000


@click.command(short_help="What happened, oldest first.")
@click.option("--event", type=options.text, metavar="NAME", help="Only events of this kind.")
@click.option("--key", type=options.text, help="Only events of this item.")
@click.option("--pipeline", type=options.text)
@click.option("--stage", type=options.text, help="With --newest-first: only events of this stage.")
@click.option("--since", type=options.text, metavar="TIME", help="Since then: 2h (ago), or 2026-02-01T10:00Z.")
@click.option(
    "--limit",
    type=click.IntRange(1, 100_000),
    default=100,
    show_default=True,
    help="How many of the newest events to show.",
)
@click.option(
    "--follow", is_flag=True, help="Keep printing new events as they happen; with --json, one object per line."
)
@click.option("--count", is_flag=True, help="Only count events by name.")
@click.option(
    "--newest-first", is_flag=True, help="The newest first, a page at a time; each looks through a part of the log."
)
@click.option("--after", type=options.text, default="", metavar="PLACE", help="With --newest-first: the next page.")
@options.common()
def events(
    event: str | None,
    key: str | None,
    pipeline: str | None,
    stage: str | None,
    since: str | None,
    limit: int,
    follow: bool,
    count: bool,
    newest_first: bool,
    after: str,
    store: str | None,
    as_json: bool,
) -> None:
    """Show what happened, oldest first unless --newest-first is given. Routine attempts leave none; `holdfast show KEY`
    has them.
    """
    asked: dict[str, Any] = {"event": event, "key": key, "pipeline": pipeline}
    begin = None if since is None else times.since(since)
    if count and (follow or key is not None):
        raise UsageError("--count goes with --event, --pipeline and --since; for one item: holdfast show KEY")
    if newest_first and (follow or count):
        raise UsageError("give one of --newest-first, --follow and --count")
    if not newest_first and (stage is not None or after):
        raise UsageError("--stage and --after go with --newest-first")
    with options.open_to_ask(store) as app:
        if count:
            print_answer(app.count_events(event=event, pipeline=pipeline, since=begin), as_json=as_json)
            return
        if newest_first:
            page = app.newest_events(**asked, stage=stage, since=begin, after=after, most=limit)
            print_answer(page, as_json=as_json)
            if page.cursor and not as_json:
                click.echo(f"There may be more: --after {page.cursor}", err=True)
            return
        place = _newest(app)
        old = app.events(**asked, since=begin, most=limit)
        if not follow:
            print_answer(old, as_json=as_json)
            return
        for one in old:
            if one.id <= place:
                _print_event(one, as_json)
        for one in _news(app, asked, place):
            _print_event(one, as_json)


def _news(app: Holdfast, asked: dict[str, Any], place: int) -> Iterator[LoggedEvent]:
    """Events as they come. Numbers are given before commits, so one may come after others with higher numbers: for a
    while everything is looked at again, and what was seen is left out. What was not asked for is passed by as well."""
    seen: set[int] = set()
    ends: deque[tuple[float, int]] = deque()
    while True:
        ends.append((time.monotonic(), _newest(app)))
        after = place
        while page := app.events(**asked, after=after, most=PAGE):
            for one in page:
                if one.id not in seen:
                    seen.add(one.id)
                    yield one
            after = page[-1].id
        while ends[-1][0] - ends[0][0] > STRAGGLER_SECONDS:
            place = max(place, ends.popleft()[1])
        seen = {number for number in seen if number > place}
        time.sleep(FOLLOW_SECONDS)


def _newest(app: Holdfast) -> int:
    return max((one.id for one in app.events(most=1)), default=0)


def _print_event(one: LoggedEvent, in_json: bool) -> None:
    click.echo(written(one.json(), indent=None) if in_json else str(one))
