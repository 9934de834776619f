"""The command line of the example.

python -m examples.documents demo [--books FOLDER] [--store URL] [--ui]
python -m examples.documents library FOLDER
python -m examples.documents add FOLDER
python -m examples.documents run
python -m examples.documents status
python -m examples.documents search WORDS
python -m examples.documents old old.db FOLDER
"""

from __future__ import annotations

import logging
import textwrap
from pathlib import Path

import click

from examples.documents.fakes.fake_library import write_fake_library
from examples.documents.fakes.fake_old_database import write_fake_old_database
from examples.documents.pipeline import Documents, keys
from examples.documents.search import search as find
from examples.documents.settings import Settings
from examples.documents.stages import where_is
from holdfast import HoldfastError
from holdfast.testing import crash_from_environment

FOLDER = click.Path(path_type=Path)


@click.group(help="A folder of books becomes a library that can be searched by meaning.")
def main() -> None: ...


@main.command(help="A library, two kills, and a summary.")
@click.option("--books", type=FOLDER, help="A folder of EPUB, PDF and HTML files.")
@click.option("--store", envvar="STORE", help="The address of an empty store; a fresh SQLite file if not given.")
@click.option("--ui", is_flag=True, envvar="DEMO_UI", help="Then serve the dashboard, until Ctrl-C.")
def demo(books: Path | None, store: str | None, ui: bool) -> None:
    from examples.documents.demo import demo as show

    show(store, books, ui)


@main.command(help="Write a library to try things on.")
@click.argument("folder", type=FOLDER)
@click.option("--long", default=500, show_default=True, help="Pages of the long book.")
@click.option("--small", default=10, show_default=True, help="How many small books.")
def library(folder: Path, long: int, small: int) -> None:
    for path in write_fake_library(folder, long_pages=long, small=small):
        click.echo(path)


@main.command(help="Add the documents of a folder.")
@click.argument("folder", type=FOLDER)
def add(folder: Path) -> None:
    application = Documents(Settings.read())
    with application.open() as app:
        added = application.add(app, folder)
    click.echo(f"{added.new} added, {added.changed} changed, {added.unchanged} as before")


@main.command(help="Work until nothing is left to do.")
@click.option("--quiet", is_flag=True)
def run(quiet: bool) -> None:
    logging.basicConfig(level=logging.ERROR if quiet else logging.INFO, format="          %(message)s")
    crash_from_environment()
    application = Documents(Settings.read())
    with application.open() as app:
        if app.run(application.settings.worker()).failed:
            raise SystemExit(1)


@main.command(help="Show where every document is, and what it cost.")
def status() -> None:
    with Documents(Settings.read()).open(create=False) as app:
        costs = {row.item: row.costs for row in app.costs(["item"]).sums}
        for key in keys(app):
            one = where_is(app, key)
            times = "  ".join(f"{stage} {took:.1f} s" for stage, took in one.took.items())
            told = times if one.stage == "complete" else one.message
            click.echo(f"{key:24} {one.stage:16} ${costs.get(key, 0):.2f}  {told}")


@main.command(help="Find chunks by meaning.")
@click.argument("words")
@click.option("--most", default=5, show_default=True)
def search(words: str, most: int) -> None:
    hits = find(Settings.read().store, words, most)
    if not hits:
        raise click.ClickException("no document is ready: add a folder, and run")
    for hit in hits:
        click.echo(f"{hit.similarity:.2f}  {hit.title} ({hit.document}, chunk {hit.chunk_index})")
        click.echo(textwrap.indent(textwrap.fill(textwrap.shorten(hit.text, 240, placeholder=" …"), 100), "      "))
        for document, n, alike in hit.connected:
            click.echo(f"      ↔ {alike:.2f}  {document}, chunk {n}")


@main.command(help="Write the database of an earlier program, with a job for each document of a folder.")
@click.argument("file", type=click.Path(path_type=Path))
@click.argument("folder", type=FOLDER)
def old(file: Path, folder: Path) -> None:
    if file.exists():
        raise click.ClickException(f"{file} is there already: name another file")
    click.echo(f"{len(write_fake_old_database(file, folder))} jobs in {file}")


if __name__ == "__main__":
    try:
        main(prog_name="python -m examples.documents")
    except HoldfastError as error:
        raise SystemExit(f"{error}") from None
