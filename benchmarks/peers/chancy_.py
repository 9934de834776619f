# mypy: ignore-errors
"""Chancy: jobs on the async executor, polled eagerly. A step of several pushes the next job."""

import asyncio

from chancy import Chancy, Job, Queue, Worker

from benchmarks.peers import chancy_ as me
from benchmarks.peers.common import Asker, Peer, run

CHUNK = 1000
CONCURRENCY = 500

#: Jobs are found by the path of a function: this is what they act for, in the copy of this module that the worker imports.
PEER = None


async def step(*, number, stage):
    await PEER.chancy.push(PEER.job(number, stage + 1))


async def last(*, number, stage):
    await PEER.handle(number)


class ChancyPeer(Peer):
    def __init__(self, order):
        super().__init__(order)
        self.loop = asyncio.new_event_loop()
        self.chancy = Chancy(self.url, max_connection_pool_size=20)
        self.loop.run_until_complete(self.chancy.__aenter__())
        self._asker = None

    def make(self):
        async def make():
            await self.chancy.migrate()
            await self.chancy.declare(
                Queue(
                    "bench",
                    concurrency=CONCURRENCY,
                    executor=Chancy.Executor.Async,
                    polling_interval=1,
                    eager_polling=True,
                ),
                upsert=True,
            )

        self.loop.run_until_complete(make())

    def job(self, number, stage=1):
        function = me.step if stage < self.stages else me.last
        return Job.from_func(function, kwargs={"number": number, "stage": stage}, queue="bench")

    def add_bulk(self, items):
        async def add():
            async for _ in self.chancy.push_many([self.job(number) for number in range(items)], batch_size=CHUNK):
                pass

        self.loop.run_until_complete(add())

    def add_each(self, items):
        async def add():
            for number in range(items):
                await self.chancy.push(self.job(number))

        self.loop.run_until_complete(add())

    def add_one(self, number):
        self.loop.run_until_complete(self.chancy.push(self.job(number)))

    def work(self):
        me.PEER = self

        async def work():
            async with Worker(self.chancy, register_signal_handlers=False) as worker:
                await worker.wait_for_shutdown()

        self.loop.run_until_complete(work())

    def left(self):
        self._asker = self._asker or Asker(self.url)
        return self._asker.number("SELECT count(*) FROM chancy_jobs WHERE state <> 'succeeded'")


if __name__ == "__main__":
    run(ChancyPeer)
