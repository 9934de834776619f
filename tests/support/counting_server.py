"""A provider that counts: a small HTTP server in a process of its own, which notes when every request came.

    with CountingServer(folder) as server:
        server.say(503)                                   # from now on; 200 at first
        ...
        assert over([call.at for call in server.calls()], 20, 5) <= 0

One thread, nothing but sockets: it notes the time as soon as a connection is there. The caller's own time is noted too, as it
wrote it: on a busy machine the server itself may come late, and find several callers waiting.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import selectors
import signal
import socket
import subprocess
import sys
import time
from dataclasses import dataclass
from http.client import HTTPConnection
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlencode, urlsplit

ROOT = Path(__file__).parent.parent.parent
#: Where the workers find it.
VARIABLE = "HOLDFAST_TEST_COUNTING_SERVER"


@dataclass(frozen=True, slots=True)
class Request:
    """One request, on the machine's steady clock, which all processes share."""

    #: When it came, and when its caller says it was sent.
    at: float
    sent: float
    key: str
    pid: int
    status: int


class CountingServer:
    """Lives as long as the block."""

    def __init__(self, folder: Path) -> None:
        self._log, self._status, self._port = folder / "requests", folder / "status", folder / "port"

    def __enter__(self) -> CountingServer:
        self.say(200)
        self._log.touch()
        self._port.unlink(missing_ok=True)
        command = [sys.executable, "-m", __name__, str(self._log), str(self._status), str(self._port)]
        self._process = subprocess.Popen(command, cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT)})
        while not self._port.exists() or not self._port.read_text():
            assert self._process.poll() is None, "the server did not start"
            time.sleep(0.01)
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait(10)

    def say(self, status: int, **headers: str) -> None:
        """What to answer from now on."""
        lines = [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
        fresh = self._status.with_suffix(".new")
        fresh.write_text("\n".join([str(status), *lines]))
        fresh.replace(self._status)

    @property
    def environment(self) -> dict[str, str]:
        return {VARIABLE: self._port.read_text()}

    def calls(self) -> list[Request]:
        """Every request, in the order in which they came."""
        found = []
        for line in self._log.read_text().splitlines():
            at, sent, key, pid, status = line.split("\t")
            found.append(Request(float(at), float(sent), key, int(pid), int(status)))
        return found


# The caller's side ----------------------------------------------------------------------------------------------------


class Refused(Exception):
    """As HTTP clients raise it."""

    def __init__(self, status: int, headers: dict[str, str]) -> None:
        super().__init__(f"the provider answered {status}")
        self.status, self.headers = status, headers


def call(key: str) -> int:
    """Ask once; raises if the answer is not 200."""
    line = HTTPConnection("127.0.0.1", int(os.environ[VARIABLE]), timeout=30)
    try:
        asked = {"key": key, "pid": os.getpid(), "sent": time.monotonic()}
        line.request("GET", f"/?{urlencode(asked)}")
        reply = line.getresponse()
        reply.read()
    finally:
        line.close()
    if reply.status != 200:
        raise Refused(reply.status, dict(reply.getheaders()))
    return reply.status


# The server -----------------------------------------------------------------------------------------------------------


def main(log: str, status: str, port: str) -> None:
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)
    with contextlib.suppress(OSError):
        os.nice(-5)
    listener = socket.create_server(("127.0.0.1", 0), backlog=512)
    listener.setblocking(False)
    Path(port).write_text(str(listener.getsockname()[1]))
    watch = selectors.DefaultSelector()
    watch.register(listener, selectors.EVENT_READ, None)
    with open(log, "ab", buffering=0) as file:
        while True:
            for ready, _ in watch.select():
                if ready.data is None:
                    _accept_all(listener, watch)
                else:
                    watch.unregister(ready.fileobj)
                    with contextlib.suppress(OSError):
                        _answer(ready.fileobj, ready.data, file, Path(status))


def _accept_all(listener: socket.socket, watch: selectors.BaseSelector) -> None:
    while True:
        try:
            line, _ = listener.accept()
        except BlockingIOError:
            return
        line.setblocking(True)
        watch.register(line, selectors.EVENT_READ, time.monotonic())


def _answer(line: Any, came: float, file: Any, status: Path) -> None:
    with line:
        text = line.recv(65536).decode(errors="replace")
        if not text:
            return
        asked = parse_qs(urlsplit(text.split(" ")[1]).query)
        code, *headers = status.read_text().splitlines()
        fields = [f"{came:.6f}", asked["sent"][0], asked["key"][0], asked["pid"][0], code]
        file.write(("\t".join(fields) + "\n").encode())
        line.sendall(
            "\r\n".join([f"HTTP/1.1 {code} x", "Content-Length: 0", "Connection: close", *headers, "", ""]).encode()
        )


if __name__ == "__main__":
    main(*sys.argv[1:])
