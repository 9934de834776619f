"""What the newsroom has beside holdfast's own command line.

python -m examples.newsroom tables                  make our own tables in the store's database
python -m examples.newsroom search WORDS
python -m examples.newsroom demo                    all of it, with a kill
python -m examples.newsroom serve | site | alerts | old      what is fake: fakes/commands.py
"""

from __future__ import annotations

import textwrap

import click
import httpx
import sqlalchemy as sa

from examples.newsroom import demo as show
from examples.newsroom.fakes import commands as fakes
from examples.newsroom.search import search as find
from examples.newsroom.tables import create

of_store = click.option("--store", metavar="URL", help="[default: $HOLDFAST_URL, then sqlite:///holdfast.db]")


@click.group(help="What the newsroom has beside holdfast's own command line.")
def main() -> None: ...


@main.command(help="Make our own tables in the store's database.")
@of_store
def tables(store: str | None) -> None:
    for name in create(store):
        click.echo(name)


@main.command(help="Find articles.")
@click.argument("words")
@click.option("--most", default=5, show_default=True)
@of_store
def search(words: str, most: int, store: str | None) -> None:
    hits = find(words, most, store)
    if not hits:
        raise click.ClickException("nothing is found: run the job first, or try other words")
    for hit in hits:
        click.echo(f"{hit.score:5.2f}  {hit.title}  ({hit.key})")
        click.echo(textwrap.indent(textwrap.shorten(hit.summary, 110, placeholder=" …"), "       "))
        click.echo(f"       found by {hit.found_by}")


@main.command(help="Kill the job while it works, and run it again.")
def demo() -> None:
    show.demo()


for command in (fakes.serve, fakes.site, fakes.alerts, fakes.old):
    main.add_command(command)


if __name__ == "__main__":
    try:
        main(prog_name="python -m examples.newsroom")
    except (OSError, ValueError, httpx.HTTPError, sa.exc.DBAPIError) as error:
        raise SystemExit(f"{error}") from None
