"""The fake world on a loopback server: a proxy that answers for every host itself, and counts what it was asked.

with serving_fake_web(FakeWorld()) as web:
    Settings(via=web.place)
    web.asked["http://maps.example/places/1.json"]       # how often a listing was paid for
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from examples.curation.fakes.fake_world import FakeWorld

#: Nobody is kept waiting for longer.
LONGEST_SECONDS = 60.0


class FakeWeb(ThreadingHTTPServer):
    """A proxy that answers for every site of a fake world."""

    daemon_threads = True
    request_queue_size = 100

    def __init__(self, world: FakeWorld, port: int = 0, delay_seconds: float = 0.0) -> None:
        super().__init__(("127.0.0.1", port), _Handler)
        self.world = world
        self.delay_seconds = delay_seconds
        #: How often each address was asked for.
        self.asked: Counter[str] = Counter()
        self._changed = threading.Condition()
        #: How many requests came, and how many of them may be answered; None: all.
        self._came = 0
        self._answered: int | None = None

    @property
    def place(self) -> str:
        return f"127.0.0.1:{self.server_address[1]}"

    def pause(self) -> None:
        """Take requests, and answer none of them for now."""
        with self._changed:
            self._answered = self._came

    def go_on(self, most: int | None = None) -> None:
        """Answer those that wait, and all that come; or only so many of those that wait, in the order they came."""
        with self._changed:
            self._answered = None if most is None or self._answered is None else self._answered + most
            self._changed.notify_all()

    def ask(self, url: str) -> int:
        """The how-manieth request for this address it is; returns when it may be answered."""
        with self._changed:
            self.asked[url] += 1
            self._came += 1
            own, nth = self._came, self.asked[url]
            self._changed.wait_for(lambda: self._answered is None or own <= self._answered, LONGEST_SECONDS)
        time.sleep(self.delay_seconds)
        return nth

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Whoever asked is gone: killed, or out of patience."""


class _Handler(BaseHTTPRequestHandler):
    server: FakeWeb

    def do_GET(self) -> None:
        # A proxy is asked for whole addresses.
        answer = self.server.world.answer(self.path, self.server.ask(self.path))
        self.send_response(answer.status)
        for name, value in (*answer.headers, ("Content-Length", str(len(answer.body)))):
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(answer.body)

    def log_message(self, *_: object) -> None:
        """What was asked is in `FakeWeb.asked`."""


@contextmanager
def serving_fake_web(world: FakeWorld, port: int = 0, delay_seconds: float = 0.0) -> Iterator[FakeWeb]:
    """It runs in a thread; it ends with the block."""
    with FakeWeb(world, port, delay_seconds) as web:
        thread = threading.Thread(target=web.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
        thread.start()
        try:
            yield web
        finally:
            web.go_on()
            web.shutdown()
            thread.join()
