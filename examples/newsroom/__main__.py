"""What the newsroom has beside holdfast's own command line: it reads arguments, calls, and prints.

    python -m examples.newsroom serve [--port 8050]     the site, the analyst, and a place for alerts
    python -m examples.newsroom site [day=2 …]          how the site stands; change it
    python -m examples.newsroom alerts                  what holdfast has told
    python -m examples.newsroom tables                  make our own tables in the store's database
    python -m examples.newsroom search WORDS
    python -m examples.newsroom old old.db              the database of an earlier program
"""

from __future__ import annotations

import argparse
import json
import signal
import textwrap
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import sqlalchemy as sa

from examples.newsroom import web
from examples.newsroom.old import write_old_database
from examples.newsroom.search import search
from examples.newsroom.server import NewsServer
from examples.newsroom.site import PAGES, Site
from examples.newsroom.tables import create


def main(words: Sequence[str] | None = None) -> None:
    arguments = _parser().parse_args(words)
    commands = {"serve": _serve, "site": _site, "alerts": _alerts, "tables": _tables, "search": _search, "old": _old}
    commands[arguments.command](arguments)


def _serve(arguments: argparse.Namespace) -> None:
    # Where the others look for it.
    port = arguments.port if arguments.port is not None else urlsplit(web.site()).port or 80
    server = NewsServer(Site(arguments.seed, arguments.pages), port=port)
    if not arguments.calm:
        server.pages.limit_every, server.pages.retry_after = 97, 1.0
        server.pages.down_every, server.pages.down_for = 150, 6
        server.analyst.fail_every = 41
    over = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: over.set())
    with server:
        print(f"{len(server.site.up())} of {arguments.pages} articles are up at {server.url}", flush=True)
        over.wait()


def _site(arguments: argparse.Namespace) -> None:
    changes = dict(_change(one) for one in arguments.changes)
    for name, value in web.control(changes or None).items():
        print(f"{name} = {json.dumps(value)}")


def _change(text: str) -> tuple[str, Any]:
    name, _, value = text.partition("=")
    try:
        return name, json.loads(value)
    except json.JSONDecodeError:
        raise SystemExit(f"{text!r}: write it as NAME=VALUE, like day=2 or pages.down=true") from None


def _alerts(arguments: argparse.Namespace) -> None:
    for one in web.alerts():
        print(one["text"])


def _tables(arguments: argparse.Namespace) -> None:
    for name in create(arguments.store).metadata.tables:
        print(name)


def _search(arguments: argparse.Namespace) -> None:
    hits = search(arguments.words, arguments.most, arguments.store)
    if not hits:
        raise SystemExit("nothing is found: run the job first, or try other words")
    for hit in hits:
        print(f"{hit.score:5.2f}  {hit.title}  ({hit.key})")
        print(textwrap.indent(textwrap.shorten(hit.summary, 110, placeholder=" …"), "       "))
        print(f"       found by {hit.found_by}")


def _old(arguments: argparse.Namespace) -> None:
    if arguments.file.exists():
        raise SystemExit(f"{arguments.file} is there already: name another file")
    keys = write_old_database(arguments.file, Site(pages=arguments.pages), web.site())
    print(f"{len(keys)} rows in {arguments.file}")


def _parser() -> argparse.ArgumentParser:
    assert __doc__ is not None
    parser = argparse.ArgumentParser(prog="python -m examples.newsroom", description=__doc__.splitlines()[0])
    commands = parser.add_subparsers(dest="command", required=True)
    serve = commands.add_parser("serve", help="the site, the analyst, and a place for alerts")
    serve.add_argument("--port", type=int, help="[default: that of $NEWSROOM_SITE, then 8050]")
    serve.add_argument("--seed", type=int, default=7)
    serve.add_argument("--pages", type=int, default=PAGES)
    serve.add_argument("--calm", action="store_true", help="no trouble of its own accord")
    site = commands.add_parser("site", help="how the local site stands; change it")
    site.add_argument("changes", nargs="*", metavar="NAME=VALUE")
    commands.add_parser("alerts", help="what holdfast has told")
    tables = commands.add_parser("tables", help="make our own tables in the store's database")
    finding = commands.add_parser("search", help="find articles")
    finding.add_argument("words")
    finding.add_argument("--most", type=int, default=5)
    for one in (tables, finding):
        one.add_argument("--store", metavar="URL", help="as holdfast has it [default: $HOLDFAST_URL, then sqlite:///holdfast.db]")
    old = commands.add_parser("old", help="write the database of an earlier program")
    old.add_argument("file", type=Path)
    old.add_argument("--pages", type=int, default=40)
    return parser


if __name__ == "__main__":
    try:
        main()
    except (OSError, ValueError, sa.exc.DBAPIError) as error:
        raise SystemExit(f"{error}") from None
