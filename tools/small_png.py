"""Makes a picture of a page a third of its size: a palette of 256 colours, and the slowest compression.

A page has a few colours and the edges of letters. The browser that took the picture reads its pixels; the file is written here.
"""

from __future__ import annotations

import base64
import struct
import zlib
from typing import Any

#: The most frequent colours are kept, and all others become the nearest of them.
REDUCE = """async (png) => {
  const bytes = Uint8Array.from(atob(png), (one) => one.charCodeAt(0));
  const picture = await createImageBitmap(new Blob([bytes]));
  const pen = new OffscreenCanvas(picture.width, picture.height).getContext("2d");
  pen.drawImage(picture, 0, 0);
  const pixels = new Uint32Array(pen.getImageData(0, 0, picture.width, picture.height).data.buffer);
  const counts = new Map();
  for (const one of pixels) counts.set(one, (counts.get(one) || 0) + 1);
  const colours = [...counts].sort((a, b) => b[1] - a[1]).map(([one]) => one);
  const parts = (one) => [one & 255, (one >> 8) & 255, (one >> 16) & 255];
  const palette = colours.slice(0, 256).map(parts);
  const places = new Map(colours.map((one, n) => {
    if (n < 256) return [one, n];
    const far = palette.map((known) => parts(one).reduce((sum, part, n) => sum + (part - known[n]) ** 2, 0));
    return [one, far.indexOf(Math.min(...far))];
  }));
  let text = "";
  for (const one of pixels) text += String.fromCharCode(places.get(one));
  return { width: picture.width, height: picture.height, palette: palette.flat(), pixels: btoa(text) };
}"""


def small_png(tab: Any, png: bytes) -> bytes:
    """The same picture; `tab` is an empty tab of a browser."""
    found = tab.evaluate(REDUCE, base64.b64encode(png).decode())
    width, height, pixels = found["width"], found["height"], base64.b64decode(found["pixels"])
    lines = b"".join(b"\0" + pixels[at : at + width] for at in range(0, width * height, width))
    chunks = {
        b"IHDR": struct.pack(">IIBBBBB", width, height, 8, 3, 0, 0, 0),
        b"PLTE": bytes(found["palette"]),
        b"IDAT": zlib.compress(lines, 9),
        b"IEND": b"",
    }
    return b"\x89PNG\r\n\x1a\n" + b"".join(_chunk(kind, content) for kind, content in chunks.items())


def _chunk(kind: bytes, content: bytes) -> bytes:
    return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))
