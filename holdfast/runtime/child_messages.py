"""Messages between a worker and its child processes: JSON with a length prefix."""

from __future__ import annotations

import socket
import struct
from collections.abc import Mapping
from typing import Any

import msgspec

_LENGTH = struct.Struct("!I")


def send(line: socket.socket, message: Any) -> None:
    body = msgspec.json.encode(message, enc_hook=_plain)
    line.sendall(_LENGTH.pack(len(body)) + body)


def receive(line: socket.socket) -> Any:
    """The next message; raises EOFError if the other side is gone, TimeoutError if the socket's timeout expires."""
    (length,) = _LENGTH.unpack(_exactly(line, _LENGTH.size))
    return msgspec.json.decode(_exactly(line, length))


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return dict(value)
    raise TypeError(f"a {type(value).__name__} cannot be sent")


def _exactly(line: socket.socket, size: int) -> bytes:
    parts = bytearray()
    while len(parts) < size:
        try:
            part = line.recv(min(size - len(parts), 1 << 20))
        except ConnectionError:
            part = b""
        if not part:
            raise EOFError
        parts += part
    return bytes(parts)
