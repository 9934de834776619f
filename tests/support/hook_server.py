"""An address that alerts are sent to, on loopback: it answers as it is told to, and remembers what came.

    with HookServer() as hook:
        hook.answers = [500, "hang", 200]      # the last one goes on for ever
        ... send to f"{hook.url}/path"
        assert hook.calls[0].body["alert"] == "failures"

Everything ends with the block, also calls that hang.
"""

from __future__ import annotations

import json
import threading
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


@dataclass(frozen=True)
class Call:
    path: str
    headers: dict[str, str]
    body: Any
    answer: int | str


class HookServer:
    def __init__(self) -> None:
        #: What the next calls get: a status, `hang` for no answer, `trickle` for one that never ends, `slow` for 200
        #: after half a second.
        self.answers: list[int | str] = [200]
        self.calls: list[Call] = []
        self._lock = threading.Lock()
        self._over = threading.Event()
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self._server.daemon_threads = True
        self._server.block_on_close = False
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    def to(self, path: str) -> list[Call]:
        return [call for call in self.calls if call.path == path]

    def __enter__(self) -> HookServer:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._server.shutdown()
        self._server.server_close()

    def _note(self, path: str, headers: dict[str, str], body: Any) -> int | str:
        with self._lock:
            # A path may say the answer itself, for ever.
            word = path.rpartition("/")[2]
            own = word if word in ("hang", "trickle") else int(word) if word.isdigit() else None
            answer = own if own is not None else self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
            self.calls.append(Call(path, headers, body, answer))
            return answer

    def _handler(hook) -> type[BaseHTTPRequestHandler]:
        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                text = self.rfile.read(int(self.headers["Content-Length"]))
                answer = hook._note(self.path, dict(self.headers), json.loads(text))
                if answer == "slow":
                    hook._over.wait(0.5)
                    answer = 200
                if answer == "hang":
                    hook._over.wait()
                elif answer == "trickle":
                    self.wfile.write(b"HTTP/1.1 200 OK\r\n")
                    while not hook._over.wait(0.05):
                        self.wfile.write(b"X-More: and more\r\n")
                else:
                    self.send_response(int(answer))
                    self.send_header("Location", f"{hook.url}/elsewhere")
                    self.send_header("Content-Length", "0")
                    self.end_headers()

            def do_GET(self) -> None:
                hook._note(self.path, dict(self.headers), None)
                self.send_response(200)
                self.end_headers()

            def handle(self) -> None:
                try:
                    super().handle()
                except ConnectionError:
                    pass  # whoever called has given up

            def log_message(self, *args: Any) -> None: ...

        return Handler
