# mypy: ignore-errors
"""SAQ on PostgreSQL. It has no bulk call: many are added at once over its pool. A step of several enqueues the next job."""

import asyncio

from saq import Queue, Worker

from benchmarks.peers.common import Asker, Peer, run

CONCURRENCY = 20
TOGETHER = 20


class Saq(Peer):
    def __init__(self, order):
        super().__init__(order)
        self.loop = asyncio.new_event_loop()
        asyncio.set_event_loop(self.loop)
        self._asker = None
        self._queue = None

    @property
    def queue(self):
        if self._queue is None:
            self._queue = Queue.from_url(self.url, min_size=4, max_size=20)
        return self._queue

    def make(self):
        self.loop.run_until_complete(self.queue.connect())

    async def _add(self, number, stage=1):
        # Kept only until it is done; no limit of time.
        await self.queue.enqueue(f"s{stage}", number=number, timeout=0, ttl=-1)

    def add_bulk(self, items):
        async def add():
            for at in range(0, items, TOGETHER):
                await asyncio.gather(*(self._add(number) for number in range(at, min(at + TOGETHER, items))))

        self.loop.run_until_complete(add())

    def add_each(self, items):
        async def add():
            for number in range(items):
                await self._add(number)

        self.loop.run_until_complete(add())

    def add_one(self, number):
        if self._queue is None:
            self.loop.run_until_complete(self.queue.connect())
        self.loop.run_until_complete(self._add(number))

    def work(self):
        def stage(at):
            async def function(ctx, *, number):
                if at < self.stages:
                    await self._add(number, at + 1)
                else:
                    await self.handle(number)

            return f"s{at}", function

        worker = Worker(self.queue, [stage(at) for at in range(1, self.stages + 1)], concurrency=CONCURRENCY)

        async def work():
            await self.queue.connect()
            await worker.start()

        self.loop.run_until_complete(work())

    def left(self):
        self._asker = self._asker or Asker(self.url)
        return self._asker.number("SELECT count(*) FROM saq_jobs WHERE status IN ('new', 'queued', 'active')")


if __name__ == "__main__":
    run(Saq)
