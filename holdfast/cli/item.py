"""Questions about one item: show, why. They change nothing, and make neither a file nor tables."""

from __future__ import annotations

import click

from holdfast.cli import options
from holdfast.cli.amounts import priced
from holdfast.cli.doubt import print_doubts, print_memos, read_memos
from holdfast.cli.output import TIMES, Facts, compact, dated, details, length, print_json, printable
from holdfast.model import codec
from holdfast.model.day import date_of
from holdfast.model.redact import redact_value
from holdfast.model.states import BAD, State

#: What a line of history does not tell at its end.
_ELSEWHERE = ("at", "event", "stage", "traceback", "amount_micros", "counted_micros")


@click.command(short_help="All about one item: data, stages, history.")
@click.argument("key", type=options.text)
@click.option("--pipeline", type=options.text, help="Which one, if several have this key.")
@options.common()
def show(key: str, pipeline: str | None, store: str | None, as_json: bool) -> None:
    """Tell all about one item: its data, where each stage stands, and what happened to it."""
    with options.open_to_ask(store) as app:
        item = app.show(key, pipeline)
        item["calls"] = [_call(one) for one in app.calls(key, item["pipeline"])]
        item["memos"] = read_memos(app, key, item["pipeline"], {one["stage"]: one["state"] for one in item["stages"]})
    item["stages"] = [dated(one, *TIMES) for one in item["stages"]]
    item["history"] = [priced(dated(one, *TIMES), "amount", "counted") for one in item["history"]]
    item = redact_value(dated(item, *TIMES))
    if as_json:
        print_json(item)
        return
    click.echo(f"{item['pipeline']} / {printable(item['key'])}: {item['status']}")
    click.echo(f"added {item['created_at']}, updated {item['updated_at']}, priority {item['priority']}")
    click.echo(f"data {compact(item['data'])}")
    for stage in item["stages"]:
        _print_stage(stage)
    print_memos(key, item["pipeline"], item["memos"])
    if item["calls"]:
        click.echo("paid calls")
    for one in item["calls"]:
        reason = f": {one['reason']}" if one["reason"] else ""
        answer = "" if one["value"] is None else f", answer {compact(one['value'])}"
        name = one["name"] or "reported by the handler"
        said = printable(f"{name}, {one['amount']} {one['state']}{reason}")
        click.echo(f"  {one['at']}  {one['stage']}: {said}{answer}")
    click.echo("history")
    for one in item["history"]:
        where = f" ({one['stage']})" if one.get("stage") else ""
        rest = {name: value for name, value in one.items() if name not in _ELSEWHERE}
        click.echo(f"  {one['at']}  {one['event']}{where}{details(rest)}")


def _call(one: Facts) -> Facts:
    """A row of the ledger with times, amounts and values as people, and JSON, get them."""
    read = {name: None if one[name] is None else codec.shown(one[name]) for name in ("facts", "value")}
    told = {name: value for name, value in one.items() if name not in ("lease", "life")}
    return priced(dated({**told, **read, "day": date_of(one["day"])}, *TIMES), "amount")


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
        click.echo(f"  result {compact(stage['result'])}")


@click.command(short_help="What keeps an item from running, and when it clears.")
@click.argument("key", type=options.text)
@click.option("--pipeline", type=options.text, help="Which one, if several have this key.")
@options.common()
def why(key: str, pipeline: str | None, store: str | None, as_json: bool) -> None:
    """Name the one thing that keeps an item from running, when it clears, and what can be done."""
    with options.open_to_ask(store) as app:
        answer = dated(app.why(key, pipeline), *TIMES)
        stands_still = answer["state"] in (*BAD, State.CANCELLED, State.ON_HOLD)
        memos = read_memos(app, key, answer["pipeline"], {}) if stands_still else []
    answer["in_doubt"] = [memo for memo in memos if memo["in_doubt"] and memo["stage"] == answer["stage"]]
    if as_json:
        print_json(answer)
        return
    where = f", stage {answer['stage']} ({answer['state'] or 'not begun'})" if answer["stage"] else ""
    click.echo(f"{answer['pipeline']} / {printable(answer['key'])}{where}: {printable(answer['text'])}")
    if answer.get("since"):
        click.echo(f"since {answer['since']}")
    if answer.get("progress"):
        click.echo(f"progress {compact(answer['progress'])}")
    if answer["until"]:
        click.echo(f"until {answer['until']}")
    print_doubts(key, answer["pipeline"], answer["in_doubt"])
    if answer["do"]:
        click.echo(printable(answer["do"]))
