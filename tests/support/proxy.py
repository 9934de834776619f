"""Between a client and PostgreSQL: a proxy in a thread that loses what it is told to lose.

    with Proxy(cluster.socket) as proxy:
        worker(proxy.url("mine"))
        proxy.lose_commit(3)         # the third COMMIT from now takes place, and nobody hears of it
        proxy.lose_commit(of="beat_at")
        proxy.cut()                  # every connection ends
        proxy.silence(connection)    # it stays open, and nothing passes any more

It follows the protocol as far as it must: it knows a COMMIT when it sees one, sent as text or as a prepared statement,
and the answer to it.
"""

from __future__ import annotations

import selectors
import socket
import struct
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from urllib.parse import quote

#: Requests that come before the startup packet: SSL, GSSAPI, cancel.
_SSL, _GSS, _CANCEL = 80877103, 80877104, 80877102
_CHUNK = 65536


class Connection:
    """One client's connection and the server's side of it."""

    def __init__(self, client: socket.socket, server: socket.socket) -> None:
        self.client = client
        self.server = server
        self.silent = False
        #: Which process serves it.
        self.backend = 0
        #: What it has executed since the newest BEGIN, and whether it has said LISTEN.
        self.transaction: list[str] = []
        self.listens = False
        self.losing = False
        self._from_client = b""
        self._from_server = b""
        self._started = False
        self._prepared: dict[bytes, str] = {}

    def read_client(self, data: bytes) -> int:
        """Look at what the client says; how many COMMITs are in it."""
        self._from_client += data
        commits = 0
        while (message := self._next_from_client()) is not None:
            kind, body = message
            if kind == b"Q":
                commits += self._execute(body.rstrip(b"\0").decode(errors="replace"))
            elif kind == b"P":
                name, text = body.split(b"\0")[:2]
                self._prepared[name] = text.decode(errors="replace")
            elif kind == b"B":
                commits += self._execute(self._prepared.get(body.split(b"\0")[1], ""))
        return commits

    def read_server(self, data: bytes) -> bool:
        """Look at what the server says; True once it is ready for the next request."""
        self._from_server += data
        ready = False
        while (message := _message(self._from_server)) is not None:
            kind, body = message
            self._from_server = self._from_server[5 + len(body) :]
            ready = kind == b"Z"
            if kind == b"K":
                [self.backend] = struct.unpack("!I", body[:4])
        return ready

    def close(self) -> None:
        for line in (self.client, self.server):
            with suppress(OSError):
                line.shutdown(socket.SHUT_RDWR)
            line.close()

    def _execute(self, text: str) -> bool:
        if text.startswith("BEGIN"):
            self.transaction = []
        self.transaction.append(text)
        self.listens |= text.startswith("LISTEN")
        return text.split("; ")[-1] == "COMMIT"

    def _next_from_client(self) -> tuple[bytes, bytes] | None:
        while not self._started and len(self._from_client) >= 8:
            length, code = struct.unpack("!II", self._from_client[:8])
            if len(self._from_client) < length:
                return None
            self._from_client = self._from_client[length:]
            self._started = code not in (_SSL, _GSS, _CANCEL)
        message = _message(self._from_client) if self._started else None
        if message is not None:
            self._from_client = self._from_client[5 + len(message[1]) :]
        return message


class Proxy:
    """Listens on a port of this machine and passes everything on to a server's socket."""

    def __init__(self, upstream: Path) -> None:
        self._upstream = upstream
        self._listening = socket.create_server(("127.0.0.1", 0))
        self._inside, self._outside = socket.socketpair()
        self._selector = selectors.DefaultSelector()
        self._lock = threading.RLock()
        self._lose_in = 0
        self._lose_of = ""
        self._closed = False
        self._thread = threading.Thread(target=self._run, name="proxy", daemon=True)
        self.connections: list[Connection] = []
        #: How many clients have come so far.
        self.accepted = 0
        #: COMMITs passed on so far, and the transactions of those whose reply was lost.
        self.commits = 0
        self.lost: list[list[str]] = []
        #: New clients are let in and cut at once.
        self.refusing = False

    @property
    def port(self) -> int:
        return int(self._listening.getsockname()[1])

    def url(self, database: str, user: str = "postgres") -> str:
        return f"postgresql://{user}@127.0.0.1:{self.port}/{quote(database)}?sslmode=disable&gssencmode=disable"

    def __enter__(self) -> Proxy:
        self._selector.register(self._listening, selectors.EVENT_READ, None)
        self._selector.register(self._inside, selectors.EVENT_READ, None)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._closed = True
        self._outside.send(b".")
        self._thread.join(5)
        with self._lock:
            for connection in list(self.connections):
                self._end(connection)
        for line in (self._listening, self._inside, self._outside):
            line.close()
        self._selector.close()

    # What a test does to the line ---------------------------------------------------------------------------------

    def lose_commit(self, nth: int = 1, of: str = "") -> None:
        """Let the nth COMMIT from now take place, swallow its reply, and cut the connection it came on.

        With `of`, only transactions count that have a statement with this text.
        """
        with self._lock:
            self._lose_in, self._lose_of = nth, of

    @property
    def armed(self) -> bool:
        """Is there still a COMMIT to lose?"""
        with self._lock:
            return self._lose_in > 0 or any(connection.losing for connection in self.connections)

    def cut(self, which: Callable[[Connection], bool] = lambda _: True) -> int:
        """End these connections; return how many."""
        with self._lock:
            chosen = [connection for connection in self.connections if which(connection)]
            for connection in chosen:
                self._end(connection)
        return len(chosen)

    def silence(self, which: Callable[[Connection], bool]) -> int:
        """Let nothing pass on these connections any more, without closing them; return how many."""
        with self._lock:
            chosen = [connection for connection in self.connections if which(connection) and not connection.silent]
            for connection in chosen:
                connection.silent = True
        return len(chosen)

    # The thread ---------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        while not self._closed:
            for key, _ in self._selector.select():
                with self._lock:
                    if key.fileobj is self._listening:
                        self._accept()
                    elif key.fileobj is not self._inside and key.data in self.connections:
                        self._pass_on(key.data, key.fileobj)

    def _accept(self) -> None:
        client, _ = self._listening.accept()
        self.accepted += 1
        server = socket.socket(socket.AF_UNIX)
        try:
            if self.refusing:
                raise ConnectionRefusedError
            server.connect(str(self._upstream))
        except OSError:
            client.close()
            server.close()
            return
        client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection = Connection(client, server)
        self.connections.append(connection)
        for line in (client, server):
            self._selector.register(line, selectors.EVENT_READ, connection)

    def _pass_on(self, connection: Connection, line: object) -> None:
        source, target = connection.client, connection.server
        if line is connection.server:
            source, target = target, source
        try:
            data = source.recv(_CHUNK)
            if not data:
                self._end(connection)
                return
            if connection.silent:
                return
            if line is connection.client:
                self._count(connection, connection.read_client(data))
                target.sendall(data)
                return
            ready = connection.read_server(data)
            if not connection.losing:
                target.sendall(data)
            elif ready:
                self.lost.append(connection.transaction)
                self._end(connection)
        except OSError:
            self._end(connection)

    def _count(self, connection: Connection, commits: int) -> None:
        self.commits += commits
        if commits and self._lose_in and any(self._lose_of in text for text in connection.transaction):
            self._lose_in -= 1
            connection.losing = self._lose_in == 0

    def _end(self, connection: Connection) -> None:
        if connection in self.connections:
            self.connections.remove(connection)
            for line in (connection.client, connection.server):
                with suppress(KeyError, ValueError):
                    self._selector.unregister(line)
            connection.close()


def _message(data: bytes) -> tuple[bytes, bytes] | None:
    """The first whole message: its kind and its body."""
    if len(data) < 5:
        return None
    [length] = struct.unpack("!I", data[1:5])
    if len(data) < 1 + length:
        return None
    return data[:1], data[5 : 1 + length]
