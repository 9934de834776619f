"""Questions: status, items, show, why, events. They change nothing, and make neither a file nor tables."""

from __future__ import annotations

import time
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import click

from holdfast.app import Holdfast
from holdfast.cli import options
from holdfast.cli.output import (
    Facts,
    as_json,
    counted,
    dated,
    instant,
    iso,
    length,
    print_json,
    print_table,
    printable,
    shortened,
)
from holdfast.clock import SECOND
from holdfast.errors import UsageError
from holdfast.model.durations import seconds
from holdfast.model.states import OPEN, State

#: While following: how often to look, and how long an event may take to commit after others with higher numbers.
FOLLOW_SECONDS = 0.5
STRAGGLER_SECONDS = 5.0
PAGE = 1000

_TIMES = ("created_at", "updated_at", "started_at", "ended_at", "next_attempt_at", "beat_at", "at", "since", "until")


# status ---------------------------------------------------------------------------------------------------------------


@click.command(short_help="How many items are in which state, how long stages take, who works.")
@options.common()
def status(store: str | None, as_json: bool) -> None:
    """Say how many items are in which state at each stage, how long attempts take, and who works."""
    with options.open_to_ask(store) as app:
        pipelines, workers = app.status(), app.workers()
    if as_json:
        print_json({"pipelines": pipelines, "workers": [dated(one, *_TIMES) for one in workers]})
        return
    if not pipelines:
        click.echo("There are no pipelines in this store yet.")
    for pipeline in pipelines:
        _print_pipeline(pipeline)
    _print_workers(workers)


def _print_pipeline(pipeline: Facts) -> None:
    click.echo(pipeline["name"])
    stages = pipeline["stages"]
    shown = [
        state for state in State
        if state in (State.PENDING, State.DONE) or any(stage["states"].get(state) for stage in stages)
    ]  # fmt: skip
    rows = []
    for stage in stages:
        times = stage["timings"]
        known = (
            [length(times[name]) for name in ("mean_seconds", "p90_seconds", "max_seconds")]
            if times["count"]
            else "---"
        )
        rows.append([stage["name"], *(stage["states"].get(state, 0) for state in shown), *known])
    print_table(["stage", *shown, "mean", "p90", "max"], rows, indent="  ")
    for stage in stages:
        if stage["backfilling"]:
            click.echo(f"  {stage['name']} is new and is being back-filled")
    for stage in pipeline["removed"]:
        if stage["states"]:
            click.echo(f"  {stage['name']} was removed and still holds {counted(stage['states'])}")
            if any(stage["states"].get(state) for state in OPEN):
                where = f"--pipeline {pipeline['name']} --stage {stage['name']}"
                click.echo(f"    to set its open ones aside: holdfast cancel {where}")


def _print_workers(workers: list[Facts]) -> None:
    if not workers:
        click.echo("No worker is alive.")
        return
    click.echo("workers")
    rows = [
        [
            shortened(one["name"], 40), one["process"], "alive" if one["alive"] else "silent", one.get("in_hand", 0),
            instant(one["started_at"]), instant(one["beat_at"]), shortened(", ".join(one["stages"]), 60),
        ]
        for one in workers
    ]  # fmt: skip
    print_table(["name", "process", "is", "in hand", "since", "last beat", "stages"], rows, indent="  ")


# items ----------------------------------------------------------------------------------------------------------------


@click.command(short_help="List items.")
@click.option("--pipeline", type=options.text)
@click.option("--stage", type=options.text)
@click.option(
    "--state", type=click.Choice([state.value for state in State]), help="Those of which a stage is in this state."
)
@click.option("--key", type=options.text, metavar="PATTERN", help="* and ? are wild.")
@click.option("--error", type=options.text, metavar="TEXT", help="A part of the error; with --stage or --state.")
@click.option("--limit", type=click.IntRange(1, 100_000), default=100, show_default=True)
@click.option("--after", type=click.IntRange(0, 2**63 - 1), default=0, metavar="ID", help="Go on after this item.")
@options.common()
def items(
    pipeline: str | None, stage: str | None, state: str | None, key: str | None, error: str | None, limit: int, after: int,
    store: str | None, as_json: bool,
) -> None:  # fmt: skip
    """List items in the order they were added; with --stage or --state, stages of items."""
    if error is not None and stage is None and state is None:
        raise UsageError("--error needs --stage or --state: an error belongs to a stage")
    with options.open_to_ask(store) as app:
        found = app.items(pipeline=pipeline, stage=stage, state=state, key=key, error=error, after=after, most=limit)
    if as_json:
        print_json([dated(one, *_TIMES) for one in found])
        return
    if stage is None and state is None:
        rows = [[one["id"], one["pipeline"], one["key"], one["status"], instant(one["updated_at"])] for one in found]
        print_table(["id", "pipeline", "key", "status", "updated"], rows)
    else:
        rows = [
            [one["id"], f"{one['pipeline']}/{one['stage']}", one["key"], one["state"], one["attempts"],
             instant(one["updated_at"]), shortened(one["error"] or "", 100)]
            for one in found
        ]  # fmt: skip
        print_table(["id", "stage", "key", "state", "attempts", "updated", "error"], rows)
    if len(found) == limit:
        click.echo(f"There may be more: --after {found[-1]['id']}", err=True)


# show, why ------------------------------------------------------------------------------------------------------------


@click.command(short_help="All about one item: data, stages, history.")
@click.argument("key", type=options.text)
@click.option("--pipeline", type=options.text, help="Which one, if several have this key.")
@options.common()
def show(key: str, pipeline: str | None, store: str | None, as_json: bool) -> None:
    """Tell all about one item: its data, where each stage stands, and what happened to it."""
    with options.open_to_ask(store) as app:
        item = app.show(key, pipeline)
    item["stages"] = [dated(one, *_TIMES) for one in item["stages"]]
    item["history"] = [dated(one, *_TIMES) for one in item["history"]]
    item = dated(item, *_TIMES)
    if as_json:
        print_json(item)
        return
    click.echo(f"{item['pipeline']} / {printable(item['key'])}: {item['status']}")
    click.echo(f"added {item['created_at']}, updated {item['updated_at']}, priority {item['priority']}")
    click.echo(f"data {_compact(item['data'])}")
    for stage in item["stages"]:
        _print_stage(stage)
    click.echo("history")
    for one in item["history"]:
        rest = {name: value for name, value in one.items() if name not in ("at", "event", "stage", "traceback")}
        click.echo(f"  {one['at']}  {one['event']}{_of(one.get('stage'))}{_rest(rest)}")


def _print_stage(stage: Facts) -> None:
    attempts = f", attempt {stage['attempts']}" if stage["attempts"] else ""
    click.echo(f"{stage['stage']}: {stage['state'] or 'not begun'}{attempts}")
    if stage.get("ended_at"):
        took = stage.get("elapsed_seconds")
        click.echo(f"  ended {stage['ended_at']}{f', took {length(took)}' if took is not None else ''}")
    if stage.get("next_attempt_at"):
        click.echo(f"  next attempt {stage['next_attempt_at']}")
    if stage.get("error"):
        click.echo(f"  error {printable(stage['error'])}")
    if "result" in stage:
        click.echo(f"  result {_compact(stage['result'])}")


@click.command(short_help="What keeps an item from running, and when it clears.")
@click.argument("key", type=options.text)
@click.option("--pipeline", type=options.text, help="Which one, if several have this key.")
@options.common()
def why(key: str, pipeline: str | None, store: str | None, as_json: bool) -> None:
    """Name the one thing that keeps an item from running, when it clears, and what can be done."""
    with options.open_to_ask(store) as app:
        answer = dated(app.why(key, pipeline), *_TIMES)
    if as_json:
        print_json(answer)
        return
    where = f", stage {answer['stage']} ({answer['state'] or 'not begun'})" if answer["stage"] else ""
    click.echo(f"{answer['pipeline']} / {printable(answer['key'])}{where}: {printable(answer['text'])}")
    if answer.get("since"):
        click.echo(f"since {answer['since']}")
    if answer.get("progress"):
        click.echo(f"progress {_compact(answer['progress'])}")
    if answer["until"]:
        click.echo(f"until {answer['until']}")
    if answer["do"]:
        click.echo(printable(answer["do"]))


def _compact(value: object) -> str:
    return shortened(as_json(value, indent=None), 2000)


def _of(stage: str | None) -> str:
    return f" ({stage})" if stage else ""


def _rest(facts: Facts) -> str:
    told = ", ".join(f"{name}={shortened(value, 200)}" for name, value in facts.items() if value not in (None, "", []))
    return f"  {told}" if told else ""


# events ---------------------------------------------------------------------------------------------------------------


@click.command(short_help="What happened, oldest first.")
@click.option("--event", type=options.text, metavar="NAME", help="Only events of this kind.")
@click.option("--key", type=options.text, help="Only those of this item.")
@click.option("--pipeline", type=options.text)
@click.option("--since", type=options.text, metavar="TIME", help="From then on: 2h (ago), or 2026-02-01T10:00Z.")
@click.option("--limit", type=click.IntRange(1, 100_000), default=100, show_default=True, help="The newest so many.")
@click.option("--follow", is_flag=True, help="Go on with what happens from now on; in JSON, one object a line.")
@options.common()
def events(
    event: str | None, key: str | None, pipeline: str | None, since: str | None, limit: int, follow: bool,
    store: str | None, as_json: bool,
) -> None:  # fmt: skip
    """Tell what happened, oldest first. Uneventful attempts are not here: see `holdfast show KEY`."""
    asked: dict[str, Any] = {"event": event, "key": key, "pipeline": pipeline}
    from_us = None if since is None else _read_since(since)
    with options.open_to_ask(store) as app:
        if as_json and not follow:
            print_json([dated(one, *_TIMES) for one in app.events(**asked, since=from_us, most=limit)])
            return
        place = max((one["id"] for one in app.events(most=1)), default=0)
        old = [one for one in app.events(**asked, since=from_us, most=limit) if one["id"] <= place or not follow]
        for one in old:
            _print_event(one, as_json)
        if follow:
            for one in _news(app, asked, place):
                _print_event(one, as_json)


def _news(app: Holdfast, asked: dict[str, Any], place: int) -> Iterator[Facts]:
    """Events as they come. Numbers are given before commits, so one may come after others with higher numbers: for a
    while everything is looked at again, and what was seen is left out."""
    seen: dict[int, float] = {}
    while True:
        now = time.monotonic()
        after = place
        while page := app.events(**asked, after=after, most=PAGE):
            for one in page:
                if one["id"] not in seen:
                    seen[one["id"]] = now
                    yield one
            after = page[-1]["id"]
        for number, at in list(seen.items()):
            if now - at > STRAGGLER_SECONDS:
                place = max(place, number)
        seen = {number: at for number, at in seen.items() if number > place}
        time.sleep(FOLLOW_SECONDS)


def _print_event(one: Facts, in_json: bool) -> None:
    if in_json:
        click.echo(as_json(dated(one, *_TIMES), indent=None))
        return
    where = "/".join(part for part in (one["pipeline"], one["stage"]) if part)
    item = f"  {printable(one['item'])}" if one["item"] is not None else ""
    rest = {name: value for name, value in one["data"].items() if name != "traceback"}
    click.echo(f"{iso(one['at'])}  {one['event']}{f'  {where}' if where else ''}{item}{_rest(rest)}")


def _read_since(text: str) -> int:
    """An instant, or how long ago it was."""
    try:
        return round((time.time() - seconds(text, what="--since")) * SECOND)
    except UsageError:
        pass
    try:
        given = datetime.fromisoformat(text)
    except ValueError:
        raise UsageError(
            f"--since {text!r}: give an instant like 2026-02-01T10:00Z, or how long ago like 90m"
        ) from None
    return round((given if given.tzinfo else given.replace(tzinfo=UTC)).timestamp() * SECOND)
