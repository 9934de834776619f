# mypy: ignore-errors
"""What the scripts of the peers share: the orders they carry out, and how the end of the work is found out."""

import asyncio
import os
import sqlite3
import threading
import time
from functools import partial

from benchmarks.board import Board, now, wait_until
from benchmarks.child import Order, cpu_seconds, finish, main, most_memory_mb
from benchmarks.sending import send_each
from benchmarks.steady import steady_rate


class Peer:
    """One peer and one order. Derived classes know the peer; numbers stand for items."""

    def __init__(self, order: Order):
        self.order = order
        self.url = order.url
        self.stages = order.stages
        self.board = Board(order.board) if order.board else None
        self.times = []

    # What a peer must be able to do --------------------------------------------------------------------------------

    def make(self):
        """Make the tables."""

    def add_bulk(self, items: int):
        """Add many in the fastest documented way."""
        for number in range(items):
            self.add_one(number)

    def add_each(self, items: int):
        """Add many, each by a call and a commit of its own."""
        for number in range(items):
            self.add_one(number)

    def add_one(self, number: int):
        raise NotImplementedError

    def work(self):
        """Run a worker in this thread, until the process ends."""
        raise NotImplementedError

    def left(self) -> int:
        """How many are not finished yet; asked from another thread, once every handler has begun."""
        raise NotImplementedError

    def fill(self, items: int):
        """Put so many into the queue, by statements over sets."""
        raise NotImplementedError

    # What handlers do ----------------------------------------------------------------------------------------------

    def begin(self, number: int):
        """A handler that has nothing to do but to tell."""
        if self.order.most:
            self.times.append(now())
        else:
            self.board.start(number)

    async def handle(self, number: int, beat=None):
        """The same; `beat` is called now and then by one that holds its item, where the peer wants that."""
        self.begin(number)
        if self.order.hold:
            while not self.board.released:
                await asyncio.sleep(min(0.5, self.order.lease_seconds / 4) if beat else 0.05)
                if beat:
                    await beat()
            self.board.end(number)

    def handle_in_thread(self, number: int):
        self.begin(number)
        if self.order.hold:
            while not self.board.released:
                time.sleep(0.05)
            self.board.end(number)


def run(peer_class):
    """Carry out the order that this process was started with."""
    orders = {"add": _add, "drain": _drain, "drain_some": _drain_some, "serve": _serve, "send": _send, "fill": _fill}
    main({name: partial(function, peer_class) for name, function in orders.items()})


def _add(peer_class, order):
    peer = peer_class(order)
    peer.make()
    order.ready()
    began = now()
    if order.items:
        (peer.add_bulk if order.bulk else peer.add_each)(order.items)
    return {"seconds": now() - began}


def _drain(peer_class, order):
    peer = peer_class(order)

    def watch():
        wait_until(peer.board.all_started, 36_000)
        if not wait_until(lambda: not peer.left(), 120):
            os._exit(9)
        finish({"began": began, "ended": now(), "cpu_seconds": cpu_seconds() - spent, "memory_mb": most_memory_mb()})

    order.ready()
    spent, began = cpu_seconds(), now()
    threading.Thread(target=watch, daemon=True).start()
    peer.work()
    time.sleep(120)  # a worker that ends by itself: the watcher sees what is left
    return {}


def _drain_some(peer_class, order):
    peer = peer_class(order)
    order.ready()
    if not order.most:
        return {}

    def watch():
        wait_until(lambda: len(peer.times) >= order.most, 36_000)
        finish(
            {
                "rate": steady_rate(peer.times, order.most),
                "first_ms": 1000 * (peer.times[0] - began),
                "memory_mb": most_memory_mb(),
            }
        )

    began = now()
    threading.Thread(target=watch, daemon=True).start()
    peer.work()
    return {}


def _serve(peer_class, order):
    peer = peer_class(order)
    order.ready()
    peer.work()
    return {}


def _send(peer_class, order):
    peer = peer_class(order)
    order.ready()
    return send_each(order, peer.add_one)


def _fill(peer_class, order):
    peer = peer_class(order)
    peer.make()
    order.ready()
    peer.fill(order.items)
    return {}


def sqlite_file(url: str) -> str:
    """The path in an address; the file is made, with a write-ahead log."""
    path = url.removeprefix("sqlite:///")
    conn = sqlite3.connect(path)
    conn.execute("PRAGMA journal_mode = WAL")
    conn.close()
    return path


class Asker:
    """A connection for questions from another thread."""

    def __init__(self, url: str):
        if url.startswith("sqlite"):
            self._conn = sqlite3.connect(url.removeprefix("sqlite:///"), check_same_thread=False, isolation_level=None)
        else:
            import psycopg

            self._conn = psycopg.connect(url, autocommit=True)

    def number(self, statement: str) -> int:
        return self._conn.execute(statement).fetchone()[0]

    def run(self, statement: str):
        self._conn.execute(statement)
