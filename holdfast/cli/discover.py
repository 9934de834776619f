"""`holdfast discover`: look for items in sources now, whatever their schedule says."""

from __future__ import annotations

import click

from holdfast.cli import options
from holdfast.cli.exit_codes import SOME_FAILED
from holdfast.cli.output import print_answer
from holdfast.discovery import discover_now
from holdfast.errors import UsageError
from holdfast.model.did_you_mean import there_are
from holdfast.program_file import load


@click.command(short_help="Look for items in sources, now.")
@click.argument("file", type=options.text)
@click.argument("sources", nargs=-1, metavar="[SOURCE]...", type=options.text)
@options.common(file=True, log_format=True)
def discover(file: str, sources: tuple[str, ...], store: str | None, as_json: bool) -> None:
    """Look for items in the sources of FILE, or in the named ones only. Exit code 3: some of them failed."""
    found = load(file, store)
    there = sorted({spec.name for specs in found.sources.values() for spec in specs})
    if not there:
        raise UsageError(f"{file} names no sources")
    if unknown := sorted(set(sources) - set(there)):
        raise UsageError(f"{file} has no source {unknown[0]!r}; {there_are(unknown[0], there)}")
    with found.open() as app:
        looked_at = discover_now(app, found.sources, found.merges, sources or None)
    print_answer(looked_at, as_json=as_json)
    options.finish(SOME_FAILED if any(one.error for one in looked_at) else 0)
