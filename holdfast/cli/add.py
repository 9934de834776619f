"""`holdfast add`: items from arguments, from a file of JSON lines, or from stdin."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

import click
import msgspec

from holdfast.cli import options
from holdfast.cli.choose import one_pipeline
from holdfast.cli.loader import load
from holdfast.cli.output import print_json
from holdfast.errors import UsageError


@click.command(short_help="Add items to a pipeline.")
@click.argument("file", type=options.text)
@click.argument("keys", nargs=-1, metavar="[KEY]...", type=options.text)
@click.option("--pipeline", type=options.text, help="Which one, if FILE has several.")
@click.option(
    "--from", "source", type=options.text, metavar="ITEMS.JSONL", help='Objects with a "key", one a line; - for stdin.'
)
@click.option("--priority", type=int, default=0, show_default=True, help="Smaller ones are claimed first.")
@options.common(file=True)
def add(
    file: str, keys: tuple[str, ...], pipeline: str | None, source: str | None, priority: int,
    store: str | None, as_json: bool,
) -> None:  # fmt: skip
    """Add items to a pipeline in FILE: by KEY, or with data from JSON lines.

    All are checked before the first is written. A key that is known gets the new data, or keeps what it has if there is
    none; its stages stay as they are.
    """
    if not keys and source is None:
        raise UsageError("nothing to add: give keys, or --from a file of JSON lines")
    found = load(file, store)
    chosen = one_pipeline(file, found.specs, pipeline)
    items: list[Any] = [*keys, *(_read(source) if source is not None else ())]
    with found.open() as app:
        added = app.add(chosen, items, merge=app.merges.get(chosen, _newest), priority=priority)
    if as_json:
        print_json({"pipeline": chosen, **added._asdict()})
    else:
        click.echo(f"{chosen}: {added.new:,} new, {added.changed:,} changed, {added.unchanged:,} unchanged")


def _newest(old: dict[str, Any], new: dict[str, Any]) -> dict[str, Any]:
    """A key without data is no reason to forget the data it had."""
    return new or old


def _read(source: str) -> list[Any]:
    if source == "-":
        return list(_read_lines("stdin", sys.stdin.buffer))
    try:
        with Path(source).open("rb") as lines:
            return list(_read_lines(source, lines))
    except OSError as error:
        raise UsageError(f"{source} cannot be read: {error.strerror}; nothing was added") from None


def _read_lines(source: str, lines: BinaryIO) -> Iterator[Any]:
    for number, line in enumerate(lines, start=1):
        text = line.removeprefix(b"\xef\xbb\xbf").strip()
        if not text:
            continue
        try:
            item = msgspec.json.decode(text)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise UsageError(f"{source}, line {number}: {error}; nothing was added") from None
        if not isinstance(item, dict) or "key" not in item:
            raise UsageError(f'{source}, line {number}: not an object with a "key"; nothing was added')
        yield item
