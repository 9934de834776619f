"""A small HTTP server for scrapers and probes: a few fixed addresses, answered in threads beside the work."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from socketserver import TCPServer
from typing import Any, NamedTuple

from holdfast.errors import UsageError
from holdfast.model.log_lines import logger, printable
from holdfast.model.redact import redact
from holdfast.store.driver import Forkable
from holdfast.telemetry.health import Health

log = logger("holdfast.telemetry")

#: A client that sends or reads nothing for so long is left alone.
CLIENT_SECONDS = 5.0
PLAIN = "text/plain; charset=utf-8"


class Page(NamedTuple):
    """An answer."""

    body: bytes
    status: int = 200
    content_type: str = PLAIN


Pages = Mapping[str, Callable[[], Page]]


def health_pages(health: Callable[[], Health]) -> Pages:
    """`/livez` and `/readyz`: 200, or 503 with the reason."""

    def page(name: str) -> Page:
        found = health()
        return Page(b"ok\n") if getattr(found, name) else Page(f"{found.reason}\n".encode(), 503)

    return {"/livez": lambda: page("live"), "/readyz": lambda: page("ready")}


class HttpServer(Forkable):
    """Answers GET and HEAD for these addresses until it is closed. It listens from the beginning; `start` begins to answer. A
    process that a handler forks does not listen: it would keep the port after this process has ended."""

    def __init__(self, host: str, port: int, pages: Pages) -> None:
        try:
            family, *_, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
            self._server = _server_of(family)((str(address[0]), port), _handler(pages))
        except OSError as error:
            raise UsageError(f"cannot listen on {host} port {port}: {error.strerror or error}") from None
        super().__init__()
        self._thread = threading.Thread(target=self._server.serve_forever, name="holdfast-http", daemon=True)

    @property
    def port(self) -> int:
        return int(self._server.server_address[1])

    def descriptors(self) -> list[int]:
        return [self._server.fileno()] if self._server.fileno() >= 0 else []

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        if self._thread.is_alive():
            self._server.shutdown()
        self._server.server_close()
        self.closed = True


def _server_of(family: int) -> type[ThreadingHTTPServer]:
    class Server(ThreadingHTTPServer):
        address_family = socket.AddressFamily(family)
        daemon_threads = True
        # A process that ends does not wait for clients.
        block_on_close = False

        def server_bind(self) -> None:
            # Not that of HTTPServer, which asks the name service who we are.
            TCPServer.server_bind(self)
            self.server_name, self.server_port = "", int(self.server_address[1])

        def handle_error(self, request: Any, client_address: Any) -> None:
            log.debug("a request was not answered", exc_info=True)

    return Server


def _handler(pages: Pages) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        timeout = CLIENT_SECONDS
        server_version, sys_version = "holdfast", ""

        def do_GET(self) -> None:
            page = self._page()
            self._head(page)
            self.wfile.write(page.body)

        def do_HEAD(self) -> None:
            self._head(self._page())

        def _page(self) -> Page:
            make = pages.get(self.path.partition("?")[0])
            if make is None:
                return Page(b"nothing is at this address\n", 404)
            try:
                return make()
            except Exception as error:
                return Page(f"{type(error).__name__}: {printable(redact(str(error)))}\n".encode(), 503)

        def _head(self, page: Page) -> None:
            self.send_response(page.status)
            self.send_header("Content-Type", page.content_type)
            self.send_header("Content-Length", str(len(page.body)))
            self.send_header("Cache-Control", "no-store")
            self.end_headers()

        def log_message(self, format: str, *args: Any) -> None:
            """Scrapers and probes come every few seconds."""

    return Handler
