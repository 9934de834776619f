"""The command line of the example.

python -m examples.curation demo
python -m examples.curation site [--port PORT]
python -m examples.curation init
python -m examples.curation run [--until-done] [--unguarded] [NAME …]
python -m examples.curation alone NAME
python -m examples.curation status
"""

from __future__ import annotations

import asyncio
import logging
import os
from dataclasses import replace
from urllib.parse import urlsplit

import click

from examples.curation import demo as show
from examples.curation.fakes.fake_web import FakeWeb
from examples.curation.fakes.fake_world import FakeWorld
from examples.curation.service import Service
from examples.curation.settings import Settings
from examples.curation.status import table, where_all_is
from holdfast import HoldfastError

quietly = click.option("--quiet", is_flag=True, help="Log errors only.")


@click.group(help="Five schedulers over their own tables, as one service.")
def main() -> None: ...


@main.command(help="Three processes, one kill, and what came out.")
@click.option("--places", default=20, show_default=True)
@click.option("--processes", default=3, show_default=True)
def demo(places: int, processes: int) -> None:
    show.demo(os.environ.get("CURATION_DATABASE"), places, processes)


@main.command(help="Serve the fake web sites of the example on loopback.")
@click.option("--port", type=int, help="[default: that of $CURATION_VIA, then 8060]")
@click.option("--delay", default=0.0, help="Seconds that every answer takes.")
def site(port: int | None, delay: float) -> None:
    # Where the others look for it.
    port = port if port is not None else urlsplit(f"//{Settings.read().via}").port or 8060
    with FakeWeb(FakeWorld(), port, delay) as web:
        click.echo(f"http://{web.place} answers for every site of the example; Ctrl-C ends it", err=True)
        try:
            web.serve_forever()
        except KeyboardInterrupt:
            click.echo(f"\n{sum(web.asked.values())} requests", err=True)


@main.command(help="Make the tables, and queue some places.")
def init() -> None:
    settings = Settings.read()
    show.add_places(settings.database, FakeWorld())
    click.echo(f"{FakeWorld().places} places are queued in {settings.database}")


@main.command(help="Run the service, with all schedulers or only those named, such as 'deep scan'.")
@click.argument("names", nargs=-1, metavar="[NAME]…")
@click.option("--until-done", is_flag=True, help="End when no row is queued or processing.")
@click.option("--unguarded", is_flag=True, help="Claim as the service did before: rows are processed twice.")
@quietly
def run(names: tuple[str, ...], until_done: bool, unguarded: bool, quiet: bool) -> None:
    _log(quiet)
    settings = Settings.read()
    service = Service(replace(settings, guarded=settings.guarded and not unguarded), names)
    for name, counted in asyncio.run(service.run(until_done=until_done)).items():
        if not quiet:
            click.echo(f"{name}: {counted}")


@main.command(help="Run one scheduler with run_job_loop.")
@click.argument("name")
@click.option("--drain", is_flag=True, help="End when there is nothing to claim.")
@quietly
def alone(name: str, drain: bool, quiet: bool) -> None:
    _log(quiet)
    click.echo(Service(Settings.read(), [name]).run_one(drain=drain))


@main.command(help="Show where everything is, and how far it lags.")
def status() -> None:
    service = Service(Settings.read())
    click.echo(table(where_all_is(service.threads, service.schedulers)))


def _log(quiet: bool) -> None:
    logging.basicConfig(level=logging.ERROR if quiet else logging.INFO, format="%(asctime)s %(levelname)s %(message)s")


if __name__ == "__main__":
    try:
        main(prog_name="python -m examples.curation")
    except HoldfastError as error:
        raise SystemExit(f"{error}") from None
