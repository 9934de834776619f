"""`holdfast sources`: the sources of a store, and a look at one of them by the next worker that has it."""

from __future__ import annotations

import click

from holdfast.cli import options
from holdfast.cli.output import print_answer, print_json, printable
from holdfast.errors import UsageError


@click.command(short_help="Sources: when they were and will be looked at, and what was found.")
@click.option(
    "--look",
    type=options.text,
    metavar="PIPELINE/SOURCE",
    help="Have a worker look at it now. (To look from here: holdfast discover FILE)",
)
@click.option("--reason", type=options.text, default="", help="With --look: a reason to record in the event.")
@options.common()
def sources(look: str | None, reason: str, store: str | None, as_json: bool) -> None:
    """Show every source: its last look, what that found, its next look, and what went wrong."""
    with options.open_to_ask(store) as app:
        if look is None:
            print_answer(app.sources(), as_json=as_json)
            return
        pipeline, slash, source = look.partition("/")
        if not slash or not source:
            raise UsageError(f"--look {look!r}: write it as PIPELINE/SOURCE")
        is_new = app.request_look(pipeline, source, reason=reason, by=options.user())
    if as_json:
        print_json({"pipeline": pipeline, "source": source, "requested": is_new})
        return
    said = "is looked at by the next worker that has it" if is_new else "was due already, or is being looked at"
    click.echo(f"{printable(look)} {said}")
