"""Commands for what is fake: the server, the site that it plays, the alerts that it was sent, and an old database."""

from __future__ import annotations

import json
import signal
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import click

from examples.newsroom import web
from examples.newsroom.fakes.fake_old_database import write_fake_old_database
from examples.newsroom.fakes.fake_server import FakeServer
from examples.newsroom.fakes.fake_site import PAGES, FakeSite

ENDS = {signal.SIGINT, signal.SIGTERM}


@click.command(help="Be the site, the analyst, and a place for alerts, until stopped.")
@click.option("--port", type=int, help="[default: that of $NEWSROOM_SITE, then 8050]")
@click.option("--seed", default=7, show_default=True)
@click.option("--pages", default=PAGES, show_default=True)
@click.option("--calm", is_flag=True, help="No trouble of its own accord.")
def serve(port: int | None, seed: int, pages: int, calm: bool) -> None:
    # Where the others look for it.
    server = FakeServer(FakeSite(seed, pages), port=port if port is not None else urlsplit(web.site()).port or 80)
    if not calm:
        server.pages.limit_every, server.pages.retry_after = pages // 3, 1.0
        server.pages.down_every, server.pages.down_for = pages // 2, 6
        server.analyst.fail_every = 41
    # Before there are threads, all of which then leave these signals to us.
    signal.pthread_sigmask(signal.SIG_BLOCK, ENDS)
    with server:
        click.echo(f"{len(server.site.up())} of {pages} articles are up at {server.url}")
        signal.sigwait(ENDS)


@click.command(help="Show how the fake site stands; change it, as with day=2 or pages.down=true.")
@click.argument("changes", nargs=-1, metavar="[NAME=VALUE]…")
def site(changes: tuple[str, ...]) -> None:
    for name, value in ask_control(dict(_change(one) for one in changes)).items():
        click.echo(f"{name} = {json.dumps(value)}")


def _change(text: str) -> tuple[str, Any]:
    name, _, value = text.partition("=")
    try:
        return name, json.loads(value)
    except json.JSONDecodeError:
        raise click.ClickException(f"{text!r}: write it as NAME=VALUE, like day=2 or pages.down=true") from None


@click.command(help="Show the alerts that holdfast has sent.")
def alerts() -> None:
    for one in ask_alerts():
        click.echo(one["text"])


@click.command(help="Write the database of an earlier program.")
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--pages", default=40, show_default=True)
def old(file: Path, pages: int) -> None:
    if file.exists():
        raise click.ClickException(f"{file} is there already: name another file")
    click.echo(f"{len(write_fake_old_database(file, FakeSite(pages=pages), web.site()))} rows in {file}")


def ask_control(changes: dict[str, Any] | None = None) -> dict[str, Any]:
    """Change the fake site (`{"day": 2, "pages.down": True}`); return how it stands."""
    where = f"{web.site()}/control"
    reply = web.client.post(where, json=changes) if changes else web.client.get(where)
    if reply.is_client_error:
        raise ValueError(reply.json()["error"])
    told: dict[str, Any] = reply.raise_for_status().json()
    return told


def ask_alerts() -> list[dict[str, Any]]:
    """What the fake server was told by holdfast."""
    told: list[dict[str, Any]] = web.client.get(f"{web.site()}/alerts").raise_for_status().json()
    return told
