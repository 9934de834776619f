"""A provider that is paid for every call: an HTTP server on the loopback, and the judge of who called it how often.

    with PaidServer(folder / "calls") as server:
        server.after_reply = lambda call: os.kill(call.pid, signal.SIGKILL)     # the reply is sent, nobody records it
        ...
        assert Counter(call.idempotency for call in server.calls()) == ...

Every request is written to a file before it is answered. What it answers depends on nothing but what it is asked, so that
two runs over the same items come to the same. It can be slow, and it can fail: a call that fails is not paid for.
"""

from __future__ import annotations

import http.client
import json
import os
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from http.client import HTTPMessage
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlencode, urlsplit

#: Where the workers find it.
VARIABLE = "HOLDFAST_TEST_PROVIDER"
#: The worker on whose behalf a process calls: a handler may run in a child of it.
WORKER = "HOLDFAST_TEST_WORKER"


@dataclass(frozen=True, slots=True)
class Call:
    """One request, as the provider saw it."""

    #: On the machine's steady clock, which all processes share.
    at: float
    key: str
    name: str
    idempotency: str
    pid: int
    worker: int
    #: Which call of this idempotency key it was, counted from 1; failed ones do not count.
    nth: int
    paid: bool


class PaidServer:
    """Answers in threads, until the block ends."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._lock = threading.Lock()
        self._known: dict[str, int] = {}
        #: May set a call's fate before it is answered: seconds to wait, and whether it fails.
        self.delay: Callable[[str, str], float] = lambda key, name: 0.0
        self.fails: Callable[[str, str], bool] = lambda key, name: False
        #: What to say on top: a caller that is told to `wait` does not return.
        self.says: Callable[[Call], dict[str, Any]] = lambda call: {}
        #: Called right after the reply was sent.
        self.after_reply: Callable[[Call], None] = lambda call: None

    def __enter__(self) -> PaidServer:
        server = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                server._answer(self)

            def do_GET(self) -> None:
                server._look_up(self)

            def log_message(self, *_: Any) -> None: ...

        self._http = _Quiet(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._http.serve_forever, args=(0.05,), daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._http.shutdown()
        self._http.server_close()
        self._thread.join(10)

    @property
    def environment(self) -> dict[str, str]:
        """What a worker must know."""
        return {VARIABLE: f"127.0.0.1:{self._http.server_address[1]}"}

    def calls(self, key: str | None = None) -> list[Call]:
        """Every call that was paid for, in the order in which they came."""
        return [call for call in self.requests(key) if call.paid]

    def requests(self, key: str | None = None) -> list[Call]:
        if not self._file.exists():
            return []
        found = [Call(**json.loads(line)) for line in self._file.read_text().splitlines()]
        return [call for call in found if key in (None, call.key)]

    # The parts --------------------------------------------------------------------------------------------------------

    def _answer(self, request: BaseHTTPRequestHandler) -> None:
        asked = {name: values[0] for name, values in parse_qs(urlsplit(request.path).query).items()}
        key, name, idempotency = asked["key"], asked["name"], request.headers["Idempotency-Key"]
        time.sleep(self.delay(key, name))
        paid = not self.fails(key, name)
        with self._lock:
            nth = self._known[idempotency] = self._known.get(idempotency, 0) + paid
            call = Call(time.monotonic(), key, name, idempotency, int(asked["pid"]), int(asked["worker"]), nth, paid)
            descriptor = os.open(self._file, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666)
            os.write(descriptor, json.dumps(asdict(call)).encode() + b"\n")
            os.close(descriptor)
        self._reply(request, 200 if paid else 503, {**answer_to(key, name), **self.says(call)} if paid else {})
        self.after_reply(call)

    def _look_up(self, request: BaseHTTPRequestHandler) -> None:
        """What became of a call, by its idempotency key."""
        asked = {name: values[0] for name, values in parse_qs(urlsplit(request.path).query).items()}
        found = [call for call in self.calls() if call.idempotency == asked["idempotency"]]
        self._reply(request, 200, answer_to(found[0].key, found[0].name) if found else None)

    def _reply(self, request: BaseHTTPRequestHandler, status: int, body: Any) -> None:
        raw = json.dumps(body).encode()
        try:
            request.send_response(status)
            request.send_header("Content-Length", str(len(raw)))
            if status == 503:
                # Shorter than the half minute that a provider is left alone that does not say.
                request.send_header("Retry-After", "0.05")
            request.end_headers()
            request.wfile.write(raw)
            request.wfile.flush()
        except OSError:
            pass  # the caller is gone


class _Quiet(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A caller that was killed is no news here."""


def answer_to(key: str, name: str) -> dict[str, Any]:
    """What the provider says: the same for the same question."""
    return {"text": f"{name} of {key}", "tokens": 7 * len(key) + len(name)}


# The caller's side ----------------------------------------------------------------------------------------------------


class ProviderRefused(ConnectionError):
    """The provider answered with an error, as HTTP clients tell it."""

    def __init__(self, status: int, headers: Mapping[str, str] | HTTPMessage) -> None:
        super().__init__(f"the provider said {status}")
        self.status, self.headers = status, headers


def call_provider(key: str, name: str, idempotency: str) -> dict[str, Any]:
    """Make a paid call; raises if the provider fails."""
    asked = {"key": key, "name": name, "pid": os.getpid(), "worker": os.environ.get(WORKER, os.getpid())}
    value = _ask("POST", f"/call?{urlencode(asked)}", {"Idempotency-Key": idempotency})
    if value.pop("wait", False):
        time.sleep(30)  # it has the answer, and will be killed before it can record it
    assert isinstance(value, dict)
    return value


def look_up(idempotency: str) -> dict[str, Any] | None:
    """Ask the provider what became of a call; None if it knows of none."""
    value: dict[str, Any] | None = _ask("GET", f"/call?{urlencode({'idempotency': idempotency})}", {})
    return value


def _ask(method: str, path: str, headers: dict[str, str]) -> Any:
    line = http.client.HTTPConnection(os.environ[VARIABLE], timeout=30)
    try:
        line.request(method, path, headers=headers)
        reply = line.getresponse()
        body = reply.read()
    finally:
        line.close()
    if reply.status != 200:
        raise ProviderRefused(reply.status, reply.headers)
    return json.loads(body)
