"""Compressed bodies, unpacked piece by piece: whoever reads decides when it is enough."""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Iterator

from holdfast.sources.contract import SourceFailed

MAGIC = b"\x1f\x8b"
PIECE = 64 * 1024


def inflated(chunks: Iterable[bytes], what: str) -> Iterator[bytes]:
    """Unpack gzip, also of several members; what follows the last one is ignored."""
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
    """What is a gzip file, by its first bytes, unpacked; everything else as it is."""
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
