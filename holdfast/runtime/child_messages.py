"""Messages between a worker and its child processes: JSON with a length prefix. A function is sent as its name."""

from __future__ import annotations

import socket
import struct
import sys
from collections.abc import Mapping
from typing import Any

import msgspec

from holdfast.model.functions import named

_LENGTH = struct.Struct("!I")
_ANY: msgspec.json.Decoder[Any] = msgspec.json.Decoder()


def send(line: socket.socket, message: Any) -> None:
    body = msgspec.json.encode(message, enc_hook=_plain)
    line.sendall(_LENGTH.pack(len(body)) + body)


def receive(line: socket.socket, decoder: msgspec.json.Decoder[Any] = _ANY) -> Any:
    """The next message; raises EOFError if the other side is gone, TimeoutError if the socket's timeout expires."""
    (length,) = _LENGTH.unpack(_exactly(line, _LENGTH.size))
    return decoder.decode(_exactly(line, length))


def decoder_of(kind: Any) -> msgspec.json.Decoder[Any]:
    """Decodes messages of this type. To be made while a module is loaded: two threads that make the decoders of a struct
    at the same time crash msgspec.
    """
    return msgspec.json.Decoder(kind, dec_hook=lambda _, place: function_at(*place))


def function_at(module: str, name: str) -> Any:
    """The function under this name, in the modules that this process has loaded; None if there is none."""
    return named(sys.modules.get(module), name)


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return dict(value)
    if callable(value):
        return value.__module__, value.__qualname__
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
