# mypy: ignore-errors
"""litequeue: a table of messages; it has no worker, so a loop pops, handles and marks as done, as its examples do."""

import time

from litequeue import LiteQueue

from benchmarks.peers.common import Asker, Peer, run, sqlite_file

CHUNK = 2000


class Lite(Peer):
    def __init__(self, order):
        super().__init__(order)
        self.queue = LiteQueue(sqlite_file(self.url), timeout=60)
        # It sets NORMAL, which may lose what was committed last.
        self.queue.conn.execute("PRAGMA synchronous = FULL")
        self._asker = None

    def add_bulk(self, items):
        for at in range(0, items, CHUNK):
            with self.queue.transaction():
                for number in range(at, min(at + CHUNK, items)):
                    self.queue.put(f"1 {number}")

    def add_one(self, number):
        self.queue.put(f"1 {number}")

    def work(self):
        while True:
            message = self.queue.pop()
            if message is None:
                time.sleep(0.005)
                continue
            stage, number = map(int, message.data.split())
            if stage < self.stages:
                self.queue.put(f"{stage + 1} {number}")
            else:
                self.handle_in_thread(number)
            self.queue.done(message.message_id)

    def left(self):
        self._asker = self._asker or Asker(self.url)
        return self._asker.number("SELECT count(*) FROM Queue WHERE status < 2")


if __name__ == "__main__":
    run(Lite)
