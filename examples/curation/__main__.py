"""The command line of the example: it reads arguments, calls, and prints.

    python -m examples.curation demo [--database URL]
    python -m examples.curation site [--port 8060]
    python -m examples.curation init
    python -m examples.curation run [--until-done] [--unguarded] [NAME …]
    python -m examples.curation alone NAME
    python -m examples.curation status
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import sys
from dataclasses import replace

from examples.curation.demo import add_places, demo
from examples.curation.service import Service
from examples.curation.settings import Settings
from examples.curation.site import Site
from examples.curation.status import table, where_all_is
from examples.curation.world import World
from holdfast import HoldfastError


def main() -> None:
    arguments = _parser().parse_args()
    commands = {"demo": _demo, "site": _site, "init": _init, "run": _run, "alone": _alone, "status": _status}
    commands[arguments.command](arguments)


def _demo(arguments: argparse.Namespace) -> None:
    demo(arguments.database, arguments.places, arguments.processes)


def _site(arguments: argparse.Namespace) -> None:
    with Site(World(), arguments.port, arguments.delay) as site:
        print(f"http://{site.place} answers for every site of the example; Ctrl-C ends it", file=sys.stderr)
        try:
            site.serve_forever()
        except KeyboardInterrupt:
            print(f"\n{sum(site.asked.values())} requests", file=sys.stderr)


def _init(arguments: argparse.Namespace) -> None:
    settings = Settings.read()
    add_places(settings.database, World())
    print(f"{World().places} places are queued in {settings.database}")


def _run(arguments: argparse.Namespace) -> None:
    _log(arguments.quiet)
    settings = Settings.read()
    if arguments.unguarded:
        settings = replace(settings, guarded=False)
    service = Service(settings, arguments.names)
    counters = asyncio.run(service.run(until_done=arguments.until_done))
    if not arguments.quiet:
        for name, counted in counters.items():
            print(f"{name}: {counted}")


def _alone(arguments: argparse.Namespace) -> None:
    _log(arguments.quiet)
    print(Service(Settings.read(), [arguments.name]).run_one(drain=arguments.drain))


def _status(arguments: argparse.Namespace) -> None:
    service = Service(Settings.read())
    print(table(where_all_is(service.threads, service.schedulers)))


def _log(quiet: bool) -> None:
    logging.basicConfig(level=logging.ERROR if quiet else logging.INFO, format="%(asctime)s %(levelname)s %(message)s")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m examples.curation", description=(__doc__ or "").splitlines()[0])
    commands = parser.add_subparsers(dest="command", required=True)
    show = commands.add_parser("demo", help="three processes, one kill, and what came out")
    show.add_argument("--database", help="the address of an empty database; a fresh SQLite file if not given")
    show.add_argument("--places", type=int, default=40)
    show.add_argument("--processes", type=int, default=3)
    site = commands.add_parser("site", help="serve the web sites of the example on loopback")
    site.add_argument("--port", type=int, default=8060)
    site.add_argument("--delay", type=float, default=0.0, help="seconds that every answer takes")
    commands.add_parser("init", help="make the tables, and queue some places")
    run = commands.add_parser("run", help="run the service")
    run.add_argument("names", nargs="*", metavar="NAME", help="only these schedulers, such as 'deep scan'")
    run.add_argument("--until-done", action="store_true", help="end when no row is queued or processing")
    run.add_argument("--unguarded", action="store_true", help="claim as the service did before: rows are processed twice")
    run.add_argument("--quiet", action="store_true")
    alone = commands.add_parser("alone", help="run one scheduler with run_job_loop")
    alone.add_argument("name", metavar="NAME")
    alone.add_argument("--drain", action="store_true", help="end when there is nothing to claim")
    alone.add_argument("--quiet", action="store_true")
    commands.add_parser("status", help="where everything is, and how far it lags")
    return parser


if __name__ == "__main__":
    try:
        main()
    except HoldfastError as error:
        raise SystemExit(f"{error}") from None
