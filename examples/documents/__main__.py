"""The command line of the example: it reads arguments, calls, and prints.

    python -m examples.documents demo [--books FOLDER] [--store URL]
    python -m examples.documents library FOLDER
    python -m examples.documents add FOLDER
    python -m examples.documents run
    python -m examples.documents status
    python -m examples.documents search WORDS
    python -m examples.documents old old.db FOLDER
"""

from __future__ import annotations

import argparse
import logging
import os
import textwrap
from pathlib import Path

from examples.documents.library import write_library
from examples.documents.old import write_old_database
from examples.documents.pipeline import Documents, keys
from examples.documents.search import search
from examples.documents.settings import Settings
from examples.documents.stages import where_is
from holdfast import HoldfastError
from holdfast.testing import crash_from_environment


def main() -> None:
    arguments = _parser().parse_args()
    commands = {
        "demo": _demo, "library": _library, "add": _add, "run": _run, "status": _status, "search": _search,
        "old": _old,
    }  # fmt: skip
    commands[arguments.command](arguments)


def _demo(arguments: argparse.Namespace) -> None:
    from examples.documents.demo import demo

    demo(arguments.store or os.environ.get("STORE"), arguments.books)


def _library(arguments: argparse.Namespace) -> None:
    for path in write_library(arguments.folder, long_pages=arguments.long, small=arguments.small):
        print(path)


def _add(arguments: argparse.Namespace) -> None:
    application = Documents(Settings.read())
    with application.open() as app:
        added = application.add(app, arguments.folder)
    print(f"{added.new} added, {added.changed} changed, {added.unchanged} as before")


def _run(arguments: argparse.Namespace) -> None:
    logging.basicConfig(level=logging.ERROR if arguments.quiet else logging.INFO, format="          %(message)s")
    crash_from_environment()
    application = Documents(Settings.read())
    with application.open() as app:
        summary = app.run(application.settings.worker())
    if summary.bad:
        raise SystemExit(1)


def _status(arguments: argparse.Namespace) -> None:
    with Documents(Settings.read()).open(create=False) as app:
        costs = {row["item"]: row["costs"] / 1e6 for row in app.costs(["item"])}
        for key in keys(app):
            one = where_is(app, key)
            times = "  ".join(f"{stage} {took:.1f} s" for stage, took in one.took.items())
            print(f"{key:24} {one.stage:16} ${costs.get(key, 0):.2f}  {times if one.stage == 'complete' else one.message}")


def _search(arguments: argparse.Namespace) -> None:
    hits = search(Settings.read().store, arguments.words, arguments.most)
    if not hits:
        raise SystemExit("no document is ready: add a folder, and run")
    for hit in hits:
        print(f"{hit.similarity:.2f}  {hit.title} ({hit.document}, chunk {hit.chunk_index})")
        print(textwrap.indent(textwrap.fill(textwrap.shorten(hit.text, 240, placeholder=" …"), 100), "      "))
        for document, n, alike in hit.connected:
            print(f"      ↔ {alike:.2f}  {document}, chunk {n}")


def _old(arguments: argparse.Namespace) -> None:
    if arguments.file.exists():
        raise SystemExit(f"{arguments.file} is there already: name another file")
    print(f"{len(write_old_database(arguments.file, arguments.folder))} jobs in {arguments.file}")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m examples.documents", description=__doc__.splitlines()[0])
    commands = parser.add_subparsers(dest="command", required=True)
    demo = commands.add_parser("demo", help="a library, two kills, and a summary")
    demo.add_argument("--books", type=Path, default=None, help="a folder of EPUB, PDF and HTML files")
    demo.add_argument("--store", help="the address of an empty store; a fresh SQLite file if not given")
    library = commands.add_parser("library", help="write a library to try things on")
    library.add_argument("folder", type=Path)
    library.add_argument("--long", type=int, default=500, help="pages of the long book")
    library.add_argument("--small", type=int, default=10, help="how many small books")
    add = commands.add_parser("add", help="add the documents of a folder")
    add.add_argument("folder", type=Path)
    run = commands.add_parser("run", help="work until nothing is left to do")
    run.add_argument("--quiet", action="store_true")
    commands.add_parser("status", help="where every document is, and what it cost")
    search = commands.add_parser("search", help="find chunks by meaning")
    search.add_argument("words")
    search.add_argument("--most", type=int, default=5)
    old = commands.add_parser("old", help="write the database of an earlier program")
    old.add_argument("file", type=Path)
    old.add_argument("folder", type=Path)
    return parser


if __name__ == "__main__":
    try:
        main()
    except HoldfastError as error:
        raise SystemExit(f"{error}") from None
