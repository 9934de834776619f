# mypy: ignore-errors
"""PGQueuer: batches of 500, asyncpg on uvloop. A step of several hands the item on by adding the next job."""

import asyncio
from datetime import timedelta

import asyncpg
import uvloop
from pgqueuer import AsyncpgDriver, PgQueuer, Queries

from benchmarks.peers.common import Peer, run

BATCH = 500
CHUNK = 2000


class PGQueuer(Peer):
    def __init__(self, order):
        super().__init__(order)
        self.loop = uvloop.new_event_loop()
        asyncio.set_event_loop(self.loop)
        self.connection = self.loop.run_until_complete(asyncpg.connect(self.url))
        self.queries = Queries(AsyncpgDriver(self.connection))
        self._asker = None

    def make(self):
        self.loop.run_until_complete(self.queries.install())

    def add_bulk(self, items):
        async def add():
            for at in range(0, items, CHUNK):
                part = [str(number).encode() for number in range(at, min(at + CHUNK, items))]
                await self.queries.enqueue(["s1"] * len(part), part, [0] * len(part))

        self.loop.run_until_complete(add())

    def add_each(self, items):
        async def add():
            for number in range(items):
                await self.queries.enqueue("s1", str(number).encode())

        self.loop.run_until_complete(add())

    def add_one(self, number):
        self.loop.run_until_complete(self.queries.enqueue("s1", str(number).encode()))

    def work(self):
        app = PgQueuer(AsyncpgDriver(self.connection))

        def stage(at):
            if at < self.stages:

                @app.entrypoint(f"s{at}")
                async def step(job):
                    await app.qm.queries.enqueue(f"s{at + 1}", job.payload)
            else:

                @app.entrypoint(f"s{at}")
                async def last(job):
                    await self.handle(int(job.payload))

        for at in range(1, self.stages + 1):
            stage(at)
        lease = timedelta(seconds=self.order.lease_seconds)
        # What a dead worker held is looked for only when a wait is over, which by default takes half a minute.
        self.loop.run_until_complete(
            app.run(batch_size=BATCH, heartbeat_timeout=lease, dequeue_timeout=min(lease / 2, timedelta(seconds=1)))
        )

    def left(self):
        async def count():
            if self._asker is None:
                self._asker = await asyncpg.connect(self.url)
            return await self._asker.fetchval("SELECT count(*) FROM pgqueuer")

        if not hasattr(self, "_asking"):
            self._asking = asyncio.new_event_loop()
        return self._asking.run_until_complete(count())

    def fill(self, items):
        async def insert():
            await self.connection.execute(
                "INSERT INTO pgqueuer (priority, entrypoint, payload, status) "
                f"SELECT 0, 's1', i::text::bytea, 'queued' FROM generate_series(0, {items - 1:d}) AS i"
            )
            await self.connection.execute("VACUUM ANALYZE pgqueuer")

        self.loop.run_until_complete(insert())


if __name__ == "__main__":
    run(PGQueuer)
