"""Tabs of a browser, as far as a server sees them: each loads a page with its files, follows its stream, and goes on."""

from __future__ import annotations

import asyncio
import re
from contextlib import suppress
from html import unescape
from itertools import count
from urllib.parse import urljoin, urlsplit

from benchmarks.board import Board, now
from benchmarks.child import Facts, Order

TABS = 20
#: So long somebody looks at a page.
LOOK_SECONDS = 5.0
#: Most people look at the overview.
PAGES = (
    "overview",
    "items",
    "overview",
    "items?state=failed",
    "overview",
    "workers",
    "overview",
    "matrix",
    "overview",
    "throughput",
    "errors",
    "events",
    "costs",
    "limits",
    "items?state=done",
)
_LIVE = re.compile(r'data-live="([^"]*)" data-mark="([^"]*)"')


def watch(order: Order) -> Facts:
    """Follow a dashboard until ended. The board counts, for each tab, the pages it began to show and the updates it got."""
    board = Board(order.board)

    async def all_tabs() -> None:
        tabs = [asyncio.ensure_future(_tab(order.ui, number, board)) for number in range(TABS)]
        while not board.all_started():
            for tab in tabs:
                if tab.done():
                    tab.result()
            await asyncio.sleep(0.05)
        await asyncio.to_thread(order.ready)
        await asyncio.gather(*tabs)

    asyncio.run(all_tabs())
    return {}


async def _tab(address: str, number: int, board: Board) -> None:
    for turn in count(number):
        # A server that was killed, or does not answer, is what some measurements are about.
        with suppress(OSError, TimeoutError, asyncio.IncompleteReadError):
            await _look(urljoin(address, PAGES[turn % len(PAGES)]), number, board)
            continue
        await asyncio.sleep(1.0)


async def _look(page: str, number: int, board: Board) -> None:
    status, html = await _get(page)
    if status != 200:
        raise SystemExit(f"{page}: {status}")
    board.start(number)
    found = _LIVE.search(html.decode())
    if found is None:
        raise SystemExit(f"{page} has no stream")
    live, mark = (unescape(one) for one in found.groups())
    await _follow(urljoin(page, f"{live}{'&' if '?' in live else '?'}mark={mark}"), number, board)


async def _get(address: str) -> tuple[int, bytes]:
    reader, writer = await _request(address)
    try:
        status, length = await _head(reader)
        return status, await reader.readexactly(length)
    finally:
        writer.close()


async def _follow(address: str, number: int, board: Board) -> None:
    """Take what comes, for as long as somebody looks."""
    reader, writer = await _request(address)
    until = now() + LOOK_SECONDS
    try:
        await _head(reader)
        while (left := until - now()) > 0:
            try:
                line = await asyncio.wait_for(reader.readline(), left)
            except TimeoutError:
                return
            if not line:
                return
            if line.startswith(b"data: "):
                board.end(number)
    finally:
        writer.close()


async def _request(address: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    parts = urlsplit(address)
    reader, writer = await asyncio.open_connection(parts.hostname, parts.port, limit=10_000_000)
    path = f"{parts.path}{'?' if parts.query else ''}{parts.query}"
    writer.write(f"GET {path} HTTP/1.1\r\nHost: {parts.netloc}\r\n\r\n".encode())
    return reader, writer


async def _head(reader: asyncio.StreamReader) -> tuple[int, int]:
    """The status of an answer, and how long its body is."""
    lines = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
    lengths = [int(line.partition(":")[2]) for line in lines if line.lower().startswith("content-length:")]
    return int(lines[0].split()[1]), sum(lengths)
