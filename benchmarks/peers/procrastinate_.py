# mypy: ignore-errors
"""Procrastinate: async tasks; finished jobs are deleted. A step of several defers the next task."""

import asyncio

from procrastinate import App, PsycopgConnector

from benchmarks.peers.common import Asker, Peer, run

CHUNK = 1000
CONCURRENCY = 30


class Procrastinate(Peer):
    def __init__(self, order):
        super().__init__(order)
        self.loop = asyncio.new_event_loop()
        size = min(order.concurrency or CONCURRENCY, 20) + 5
        self.app = App(connector=PsycopgConnector(conninfo=self.url, min_size=1, max_size=size))
        self.loop.run_until_complete(self.app.open_async())
        self._asker = None
        self.tasks = [self._stage(at) for at in range(1, self.stages + 1)]

    def _stage(self, at):
        @self.app.task(name=f"s{at}", queue="bench")
        async def step(number):
            if at < self.stages:
                await self.tasks[at].defer_async(number=number)
            else:
                await self.handle(number)

        return step

    def make(self):
        self.loop.run_until_complete(self.app.schema_manager.apply_schema_async())

    def add_bulk(self, items):
        async def add():
            for at in range(0, items, CHUNK):
                part = [{"number": number} for number in range(at, min(at + CHUNK, items))]
                await self.tasks[0].batch_defer_async(*part)

        self.loop.run_until_complete(add())

    def add_each(self, items):
        async def add():
            for number in range(items):
                await self.tasks[0].defer_async(number=number)

        self.loop.run_until_complete(add())

    def add_one(self, number):
        self.loop.run_until_complete(self.tasks[0].defer_async(number=number))

    def work(self):
        async def work():
            if self.order.hold:
                self._retrying = asyncio.create_task(self._retry_stalled())
            lease = self.order.lease_seconds
            await self.app.run_worker_async(
                queues=["bench"],
                concurrency=self.order.concurrency or CONCURRENCY,
                delete_jobs="always",
                fetch_job_polling_interval=1,
                update_heartbeat_interval=lease / 3,
                stalled_worker_timeout=lease,
                install_signal_handlers=False,
            )

        self.loop.run_until_complete(work())

    async def _retry_stalled(self):
        """As its documentation advises for jobs whose worker died; there it is a task that runs every so often."""
        while True:
            await asyncio.sleep(self.order.lease_seconds / 2)
            stalled = await self.app.job_manager.get_stalled_jobs(seconds_since_heartbeat=self.order.lease_seconds)
            for job in stalled:
                await self.app.job_manager.retry_job(job)

    def left(self):
        self._asker = self._asker or Asker(self.url)
        return self._asker.number("SELECT count(*) FROM procrastinate_jobs")

    def fill(self, items):
        asker = Asker(self.url)
        asker.run(
            "INSERT INTO procrastinate_jobs (queue_name, task_name, args) SELECT 'bench', 's1', "
            f"jsonb_build_object('number', i) FROM generate_series(0, {items - 1:d}) AS i"
        )
        asker.run("VACUUM ANALYZE procrastinate_jobs")


if __name__ == "__main__":
    run(Procrastinate)
