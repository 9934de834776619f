# mypy: ignore-errors
"""Huey on SQLite with full durability. Steps are a pipeline of tasks; results are kept only where a pipeline needs them."""

import threading

from huey import SqliteHuey

from benchmarks.peers.common import Asker, Peer, run, sqlite_file

#: One thread: more of them wait for each other's write lock.
WORKERS = 1


class Huey(Peer):
    def __init__(self, order):
        super().__init__(order)
        # fsync=True sets synchronous=FULL on every connection.
        self.huey = SqliteHuey(
            "bench", filename=sqlite_file(self.url), fsync=True, results=False, timeout=60, strict_fifo=True
        )
        self._asker = None

        @self.huey.task()
        def step(number):
            return number

        @self.huey.task()
        def last(number):
            self.handle_in_thread(number)

        self.step, self.last = step, last

    def _task(self, number):
        if self.stages == 1:
            return self.last.s(number)
        chain = self.step.s(number)
        for _ in range(self.stages - 2):
            chain.then(self.step)
        return chain.then(self.last)

    def add_one(self, number):
        self.huey.enqueue(self._task(number))

    def work(self):
        # The shortest delay that is sensible: the queue is polled.
        consumer = self.huey.create_consumer(
            workers=self.order.concurrency or WORKERS,
            periodic=False,
            initial_delay=0.005,
            max_delay=0.01,
            backoff=1.15,
            check_worker_health=False,
        )
        consumer.start()
        threading.Event().wait()

    def left(self):
        self._asker = self._asker or Asker(self.url)
        return self._asker.number("SELECT count(*) FROM task")

    def fill(self, items):
        # One message, as Huey itself writes it, for all: only the number of the item is the same in all of them.
        message = self.huey.serialize_task(self._task(0))
        asker = Asker(self.url)
        asker._conn.execute(
            f"WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < {items:d}) "
            "INSERT INTO task (queue, data, priority) SELECT 'bench', ?, 0 FROM n",
            (message,),
        )


if __name__ == "__main__":
    run(Huey)
