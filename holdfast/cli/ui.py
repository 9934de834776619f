"""`holdfast ui`: serve the dashboard, for people on this machine or behind a token."""

from __future__ import annotations

import ipaddress
import secrets
import socket
from functools import partial
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import click

from holdfast.cli import options
from holdfast.errors import UsageError
from holdfast.program_file import load

if TYPE_CHECKING:
    from holdfast.web.dashboard import Dashboard

#: How long a stop waits for requests that are being answered.
GRACE_SECONDS = 3
SHORTEST_TOKEN = 16


@click.command(short_help="Serve the dashboard.")
@click.argument("file", type=options.text, required=False)
@click.option(
    "--host", type=options.text, default="127.0.0.1", show_default=True, help="The address or name to listen on."
)
@click.option(
    "--port", type=click.IntRange(0, 65535), default=8421, show_default=True, help="0 for any port that is free."
)
@click.option(
    "--allow-host",
    "allowed_hosts",
    type=options.text,
    multiple=True,
    metavar="NAME",
    help="A name under which people reach it, such as that of a proxy; may be given several times.",
)
@click.option(
    "--token",
    type=options.text,
    envvar="HOLDFAST_UI_TOKEN",
    help="The token to ask for. [default: a new one; env: HOLDFAST_UI_TOKEN]",
)
@click.option("--no-token", is_flag=True, help="Ask for none: every user of this machine may read and act.")
@click.option("--read-only", is_flag=True, help="Show everything, change nothing.")
@options.common(json=False, level=0, file=True, log_format=True)
def ui(
    file: str | None,
    host: str,
    port: int,
    allowed_hosts: tuple[str, ...],
    token: str | None,
    no_token: bool,
    read_only: bool,
    store: str | None,
) -> None:
    """Serve the dashboard until stopped, and print its address.

    It shows what every pipeline of the store is doing, and lets people act. FILE has the pipelines; without it, the store is
    shown as it is. It asks for a token on this machine, too, since other users can reach the port: the printed address has
    it, and the browser keeps a cookie.
    """
    if token is not None and no_token:
        raise UsageError("give --token or --no-token, not both")
    if no_token and not _is_this_machine(host):
        raise UsageError(
            f"--no-token is for this machine alone, and --host {host!r} can be reached from others: start it without, and open "
            "the address that is printed; or mount the dashboard in an application that knows its people, with "
            "dashboard(store, access=a_function)"
        )
    if token is not None and len(token) < SHORTEST_TOKEN:
        raise UsageError(f"--token has fewer than {SHORTEST_TOKEN} characters: it could be guessed")
    _require_extra()
    from holdfast.web.access import Access
    from holdfast.web.dashboard import dashboard

    opened = partial(options.open_to_ask, store) if file is None else partial(load(file, store).open, create=False)
    # What is wrong with the store is said here, and not in the browser.
    options.existing(opened()).close()
    name = options.user()
    key = None if no_token else token or secrets.token_urlsafe(24)
    everybody = (lambda request: Access(name)) if no_token else None
    app = dashboard(opened, everybody, read_only, token=key, name=name, allowed_hosts=[*_names(host), *allowed_hosts])
    _serve(app, host, port, key)


def _require_extra() -> None:
    for name in ("jinja2", "starlette", "uvicorn"):
        if find_spec(name) is None:
            raise UsageError(f"the dashboard needs {name}, which comes with the extra web: install holdfast[web]")


def _is_this_machine(host: str) -> bool:
    """Whether only this machine can reach the address. Of names, only `localhost` is sure to mean it."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host.lower() == "localhost"


def _names(host: str) -> list[str]:
    """The names under which it may be reached, beside numbers and localhost."""
    return [host, socket.gethostname(), socket.getfqdn()] if host in ("0.0.0.0", "::") else [host]


def _serve(app: Dashboard, host: str, port: int, token: str | None) -> None:
    import uvicorn

    class Server(uvicorn.Server):
        """Ends the streams of open tabs first: a stop would wait for them."""

        def handle_exit(self, sig: int, frame: Any) -> None:
            app.streams.end()
            super().handle_exit(sig, frame)

        async def startup(self, sockets: list[socket.socket] | None = None) -> None:
            await super().startup(sockets)
            if self.started:
                bound = self.servers[0].sockets[0].getsockname()[1]
                shown = f"[{host}]" if ":" in host else host
                click.echo(f"http://{shown}:{bound}/{f'?token={token}' if token else ''}")

    config = uvicorn.Config(
        app,
        host=host,
        port=port,
        log_level="warning",
        access_log=False,
        server_header=False,
        timeout_graceful_shutdown=GRACE_SECONDS,
        # What a proxy says about the client is nobody's business here.
        proxy_headers=False,
    )
    server = Server(config)
    server.run()
    if not server.started:
        options.finish(1)
