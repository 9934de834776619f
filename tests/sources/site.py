"""A web server of the test's own, on loopback: pages by path, and a list of what was asked."""

from __future__ import annotations

import hashlib
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

Page = Callable[["Request"], None]


class Request(BaseHTTPRequestHandler):
    """One request; a page answers it."""

    site: Site

    body = b""

    def do_POST(self) -> None:
        self.body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        self.site.bodies.append(self.body)
        self.do_GET()

    def do_GET(self) -> None:
        self.site.asked.append(self.path)
        self.site.headers.append({name.lower(): value for name, value in self.headers.items()})
        page = self.site.pages.get(self.path) or self.site.pages.get(self.path.partition("?")[0])
        try:
            if page is None:
                self.answer(404, b"")
            else:
                page(self)
        except (BrokenPipeError, ConnectionResetError):
            pass

    def answer(self, status: int, body: bytes, **headers: Any) -> None:
        self.send_response(status)
        headers.setdefault("Content_Length", len(body))
        for name, value in headers.items():
            if value is not None:
                self.send_header(name.replace("_", "-"), str(value))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Quiet."""


class Site:
    """Pages that a test puts up and takes down."""

    def __init__(self, port: int) -> None:
        self.url = f"http://127.0.0.1:{port}"
        self.pages: dict[str, Page] = {}
        self.asked: list[str] = []
        self.headers: list[dict[str, str]] = []
        #: Of requests by POST.
        self.bodies: list[bytes] = []
        self.ending = threading.Event()

    def put(self, path: str, body: bytes | str, *, etag: bool = False, status: int = 200, **headers: Any) -> str:
        """A page with this body; with an ETag it is sent once, and then only when it has changed."""
        content = body.encode() if isinstance(body, str) else body
        tag = f'"{hashlib.md5(content).hexdigest()}"'

        def page(request: Request) -> None:
            if etag and request.headers.get("If-None-Match") == tag:
                request.answer(304, b"", Content_Length=None, ETag=tag)
            else:
                request.answer(status, content, **({"ETag": tag} if etag else {}), **headers)

        self.pages[path] = page
        return self.url + path

    def redirect(self, path: str, target: str, status: int = 302) -> str:
        self.pages[path] = lambda request: request.answer(status, b"", Location=target)
        return self.url + path

    def serve(self, path: str, page: Page) -> str:
        self.pages[path] = page
        return self.url + path


class _Server(ThreadingHTTPServer):
    def handle_error(self, *_: object) -> None:
        """Quiet: who is asked may hang up."""


@contextmanager
def serving(tls: ssl.SSLContext | None = None) -> Iterator[Site]:
    server = _Server(("127.0.0.1", 0), Request)
    if tls is not None:
        server.socket = tls.wrap_socket(server.socket, server_side=True)
    server.daemon_threads = True
    site = Site(server.server_address[1])
    server.RequestHandlerClass = type("Asked", (Request,), {"site": site})
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    try:
        yield site
    finally:
        site.ending.set()
        server.shutdown()
        server.server_close()
        thread.join()
