"""A provider in any mood, on loopback: the first part of the path says how it answers.

    with MoodyServer() as server:
        httpx.post(f"{server.url}/429")            # a status, with the provider's error as JSON
        httpx.post(f"{server.url}/403-page")       # a status, with a page of HTML
        httpx.post(f"{server.url}/hang")           # one of MOODS

Every request is read to its end before anything happens to it. Connections that hang end with the block.
"""

from __future__ import annotations

import json
import socket
import struct
import threading
from collections.abc import Callable
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

#: What clients of language models make of a good reply; the first chunk of a stream; an error inside of a stream.
_ANSWERS = {
    "openai": {
        "id": "c",
        "object": "chat.completion",
        "created": 1,
        "model": "m",
        "choices": [{"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": "yes"}}],
    },
    "anthropic": {
        "id": "m",
        "type": "message",
        "role": "assistant",
        "model": "m",
        "stop_reason": "end_turn",
        "content": [{"type": "text", "text": "yes"}],
        "usage": {"input_tokens": 1, "output_tokens": 1},
    },
}
_CHUNKS = {
    "openai": b'data: {"id":"c","object":"chat.completion.chunk","created":1,"model":"m","choices":[]}\n\n',
    "anthropic": b'event: ping\ndata: {"type":"ping"}\n\n',
}
_BREAKS_OFF = {
    "openai": b'data: {"error":{"message":"busy","type":"server_error","code":429}}\n\n',
    "anthropic": b'event: error\ndata: {"type":"error","error":{"type":"overloaded_error","message":"busy"}}\n\n',
}
#: What providers say about a key, as their clients read it.
KEY_ERRORS = {
    "openai": {
        "error": {"message": "Incorrect API key provided", "type": "invalid_request_error", "code": "invalid_api_key"}
    },
    "anthropic": {"type": "error", "error": {"type": "authentication_error", "message": "invalid x-api-key"}},
}
PAGE = b"<html><body><h1>Forbidden</h1>Unauthenticated visitors get permission_denied here.</body></html>"


class MoodyServer:
    def __init__(self) -> None:
        #: What `/next` does, in this order; the last one stays.
        self.next: list[str] = ["200"]
        #: The moods of the requests that came.
        self.calls: list[str] = []
        self._lock = threading.Lock()
        self._over = threading.Event()
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self._server.daemon_threads = True
        self._server.block_on_close = False
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    def __enter__(self) -> MoodyServer:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._server.shutdown()
        self._server.server_close()

    def _mood(self, path: str) -> str:
        with self._lock:
            mood = path.strip("/").split("/")[0]
            if mood == "next":
                mood = self.next.pop(0) if len(self.next) > 1 else self.next[0]
            self.calls.append(mood)
            return mood

    def _handler(server) -> type[BaseHTTPRequestHandler]:
        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                self.rfile.read(int(self.headers.get("Content-Length", 0)))
                mood = server._mood(self.path)
                client = "anthropic" if "messages" in self.path else "openai"
                self.close_connection = True
                if mood in MOODS:
                    MOODS[mood](self, client)
                else:
                    self.answer(mood, client)

            do_POST = do_GET

            def answer(self, mood: str, client: str) -> None:
                status, _, kind = mood.partition("-")
                answer: Any = {"error": {"message": f"moody {status}", "type": "some_error"}}
                if status == "200":
                    answer = _ANSWERS[client]
                elif kind == "key":
                    answer = KEY_ERRORS[client]
                body = PAGE if kind == "page" else json.dumps(answer).encode()
                self.begin(int(status), "text/html" if kind == "page" else "application/json", len(body))
                self.wfile.write(body)

            def begin(self, status: int, kind: str, length: int | None = None) -> None:
                self.send_response(status)
                self.send_header("Content-Type", kind)
                if status == 429:
                    self.send_header("Retry-After", "0.01")
                if length is not None:
                    self.send_header("Content-Length", str(length))
                self.send_header("Connection", "close")
                self.end_headers()

            def hang(self, client: str) -> None:
                server._over.wait()

            def reset(self, client: str) -> None:
                # Closing with unsent data thrown away makes the kernel send a reset.
                self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                self.connection.shutdown(socket.SHUT_RD)
                self.rfile.close()
                self.wfile.close()
                self.connection.close()

            def hang_up(self, client: str) -> None:
                self.connection.shutdown(socket.SHUT_RDWR)

            def half(self, client: str) -> None:
                self.begin(200, "application/json", 1000)
                self.wfile.write(b'{"id": ')

            def half_stream(self, client: str) -> None:
                self.begin(200, "text/event-stream", 1000)
                self.wfile.write(_CHUNKS[client])

            def error_in_stream(self, client: str) -> None:
                self.begin(200, "text/event-stream")
                self.wfile.write(_CHUNKS[client] + _BREAKS_OFF[client])

            def handle(self) -> None:
                with suppress(OSError, ValueError):  # whoever called has given up
                    super().handle()

            def finish(self) -> None:
                with suppress(OSError, ValueError):
                    super().finish()

            def log_message(self, *args: Any) -> None: ...

        MOODS: dict[str, Callable[[Handler, str], None]] = {
            "hang": Handler.hang,
            "reset": Handler.reset,
            "hang-up": Handler.hang_up,
            "half": Handler.half,
            "half-stream": Handler.half_stream,
            "error-in-stream": Handler.error_in_stream,
        }
        return Handler


class NobodyAccepts:
    """An address that no connection is accepted at: a backlog that is full, so that connecting takes for ever."""

    def __enter__(self) -> str:
        self._listener = socket.socket()
        self._listener.bind(("127.0.0.1", 0))
        self._listener.listen(0)
        self._waiting = []
        for _ in range(4):
            one = socket.socket()
            one.setblocking(False)
            with suppress(BlockingIOError):
                one.connect(self._listener.getsockname())
            self._waiting.append(one)
        return f"http://127.0.0.1:{self._listener.getsockname()[1]}"

    def __exit__(self, *_: object) -> None:
        for one in (*self._waiting, self._listener):
            one.close()


def nobody_listens() -> str:
    """An address that refuses connections."""
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return f"http://127.0.0.1:{one.getsockname()[1]}"
