# mypy: ignore-errors
"""Absurd: tasks with checkpointed steps, async worker. It has no bulk call: items are spawned in one transaction."""

import asyncio

import psycopg
from absurd_sdk import AsyncAbsurd
from absurdctl import BUNDLED_SCHEMA_SQL

from benchmarks.peers.common import Asker, Peer, run

QUEUE = "bench"
BATCH = 100


class Absurd(Peer):
    def __init__(self, order):
        super().__init__(order)
        self.loop = asyncio.new_event_loop()
        self.app = AsyncAbsurd(self.url, queue_name=QUEUE)
        self._asker = None

        @self.app.register_task("items")
        async def items(params, ctx):
            if self.stages > 1:
                for at in range(self.stages):
                    await ctx.step(f"s{at}", _step)
            await self.handle(params["number"], beat=ctx.heartbeat)

    def make(self):
        Asker(self.url).run(BUNDLED_SCHEMA_SQL)
        self.loop.run_until_complete(self.app.create_queue())

    def add_bulk(self, items):
        async def add():
            async with await psycopg.AsyncConnection.connect(self.url) as conn:
                app = AsyncAbsurd(conn, queue_name=QUEUE)
                for number in range(items):
                    await app.spawn("items", {"number": number}, queue=QUEUE)

        self.loop.run_until_complete(add())

    def add_one(self, number):
        self.loop.run_until_complete(self.app.spawn("items", {"number": number}))

    def work(self):
        many = self.order.concurrency or BATCH
        lease = max(1, round(self.order.lease_seconds))
        # claim_timeout is in whole seconds.
        self.loop.run_until_complete(
            self.app.start_worker(concurrency=many, batch_size=many, poll_interval=0.01, claim_timeout=lease)
        )

    def left(self):
        self._asker = self._asker or Asker(self.url)
        return self._asker.number(f"SELECT count(*) FROM absurd.t_{QUEUE} WHERE state <> 'completed'")


async def _step():
    return 1


if __name__ == "__main__":
    run(Absurd)
