"""Decompress bodies piece by piece, so that the reader can stop at any point."""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Iterator

from holdfast.sources.contract import SourceFailed

MAGIC = b"\x1f\x8b"
PIECE = 64 * 1024


def inflated(chunks: Iterable[bytes], what: str) -> Iterator[bytes]:
    """Decompress gzip, also with several members; trailing data is ignored."""
    unpacker = zlib.decompressobj(wbits=31)
    begun = False
    for given in chunks:
        chunk = given
        while chunk:
            if unpacker.eof:
                if not MAGIC.startswith(chunk[:2]):
                    return
                unpacker, begun = zlib.decompressobj(wbits=31), False
            begun = True
            try:
                piece = unpacker.decompress(chunk, PIECE)
            except zlib.error as error:
                raise SourceFailed(f"{what}: its gzip is damaged ({error})") from None
            if piece:
                yield piece
            chunk = unpacker.unused_data if unpacker.eof else unpacker.unconsumed_tail
    if begun and not unpacker.eof:
        raise SourceFailed(f"{what}: its gzip ends too early")


def unpacked(chunks: Iterable[bytes], what: str) -> Iterator[bytes]:
    """Decompress data that begins like a gzip file; return anything else unchanged."""
    stream = iter(chunks)
    head = b""
    for chunk in stream:
        head += chunk
        if len(head) >= len(MAGIC):
            break

    def whole() -> Iterator[bytes]:
        yield head
        yield from stream

    yield from inflated(whole(), what) if head.startswith(MAGIC) else whole()
