"""`holdfast add`: items from arguments, from a file of plain text or JSON lines, or from stdin."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from contextlib import closing
from itertools import chain, islice
from pathlib import Path
from typing import Any, BinaryIO

import click
import msgspec

from holdfast.app import Holdfast
from holdfast.cli import options
from holdfast.cli.choose import one_pipeline
from holdfast.cli.output import print_json
from holdfast.cli.progress_line import ProgressLine
from holdfast.engine.add import CHUNK
from holdfast.errors import UsageError
from holdfast.program_file import load
from holdfast.sources.lines import key_in
from holdfast.sources.read_lines import MAX_LINE, lines

#: How a line begins that is JSON and not a key.
_JSON = (b"{", b"[", b'"')


@click.command(short_help="Add items to a pipeline.")
@click.argument("file", type=options.text)
@click.argument("keys", nargs=-1, metavar="[KEY]...", type=options.text)
@click.option("--pipeline", type=options.text, help="The pipeline, if FILE has several.")
@click.option(
    "--from",
    "source",
    type=options.text,
    metavar="ITEMS",
    help='A file with a key, or a JSON object with a "key", on every line; - for stdin.',
)
@click.option(
    "--priority", type=int, default=0, show_default=True, help="Items with a smaller number are claimed first."
)
@options.common(file=True)
def add(
    file: str,
    keys: tuple[str, ...],
    pipeline: str | None,
    source: str | None,
    priority: int,
    store: str | None,
    as_json: bool,
) -> None:
    """Add items to a pipeline in FILE: by KEY, from lines of plain text, or with data from JSON lines.

    KEYs are checked before the first is written; up to ten thousand are added together or not at all. Lines are added
    as they are read, in chunks of two thousand. If a line cannot be read, or the command is killed, the earlier chunks
    stay, and the same command run again adds the rest. A line may have 16 MiB. If a key already exists, its item gets
    the new data, or keeps its data if there is none; its stages stay as they are. A key that is an address is
    normalised, as sources do. Empty lines and lines that begin with # are skipped.
    """
    if not keys and source is None:
        raise UsageError("nothing to add: give keys, or --from a file of keys or JSON lines")
    found = load(file, store)
    chosen = one_pipeline(file, found.specs, pipeline)
    items = keys if source is None else chain(keys, _read(source))
    with found.open() as app, closing(ProgressLine()) as line:
        added = app.add(
            chosen,
            _named(app, chosen, items),
            merge=app.merges.get(chosen, _newest),
            priority=priority,
            atomic=source is None,
            progress=lambda added: line.draw(f"{sum(added):,} items"),
        )
    if as_json:
        print_json({"pipeline": chosen, **added._asdict()})
    else:
        click.echo(f"{chosen}: {added.new:,} new, {added.changed:,} changed, {added.unchanged:,} unchanged")


def _newest(old: dict[str, Any], new: dict[str, Any]) -> dict[str, Any]:
    """A key without data is no reason to forget the data it had."""
    return new or old


def _named(app: Holdfast, pipeline: str, items: Iterable[Any]) -> Iterator[Any]:
    """The items with the keys that sources would give them; a key without data that comes again, in other words, too, once."""
    left = iter(items)
    while chunk := list(islice(left, CHUNK)):
        written = [item if isinstance(item, str) else item["key"] for item in chunk]
        keys = app.keys_for(pipeline, [one for one in written if isinstance(one, str)])
        seen: set[str] = set()
        for item, one in zip(chunk, written, strict=True):
            key = keys[one] if isinstance(one, str) else one
            if isinstance(item, dict):
                yield {**item, "key": key}
            elif key not in seen:
                seen.add(key)
                yield key


def _read(source: str) -> Iterator[Any]:
    if source == "-":
        yield from _read_lines("stdin", sys.stdin.buffer)
        return
    try:
        with Path(source).open("rb") as file:
            yield from _read_lines(source, file)
    except OSError as error:
        raise UsageError(f"{source} cannot be read: {error.strerror}") from None


def _read_lines(source: str, file: BinaryIO) -> Iterator[Any]:
    def too_long(number: int) -> None:
        raise UsageError(f"{source}, line {number}: it is longer than {MAX_LINE // 2**20} MiB")

    for number, line in lines(file, b"\n", too_long):
        try:
            text = line.removeprefix(b"\xef\xbb\xbf").strip()
            item = msgspec.json.decode(text) if text.startswith(_JSON) else key_in(text)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise UsageError(f"{source}, line {number}: {error}") from None
        if isinstance(item, str) or (isinstance(item, dict) and "key" in item):
            yield item
        elif item is not None:
            raise UsageError(f'{source}, line {number}: not an object with a "key"')
