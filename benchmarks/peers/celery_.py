# mypy: ignore-errors
"""Celery on Redis: late acknowledgement, so that nothing is lost with a worker; no results. Steps are a chain."""

import redis
from celery import Celery, chain

from benchmarks.peers.common import Peer, run

QUEUE = "bench"


class CeleryPeer(Peer):
    def __init__(self, order):
        super().__init__(order)
        path = self.url.removeprefix("unix://")
        self.app = Celery("bench", broker=f"redis+socket://{path}")
        self.app.conf.update(
            task_acks_late=True,
            task_ignore_result=True,
            task_default_queue=QUEUE,
            worker_prefetch_multiplier=64,
            worker_send_task_events=False,
            broker_connection_retry_on_startup=True,
            worker_hijack_root_logger=False,
        )
        self.redis = redis.Redis(unix_socket_path=path)

        @self.app.task(name="step")
        def step(number):
            return number

        @self.app.task(name="last")
        def last(number):
            self.handle_in_thread(number)

        self.step, self.last = step, last

    def add_one(self, number):
        if self.stages == 1:
            self.last.apply_async((number,))
        else:
            chain(self.step.s(number), *(self.step.s() for _ in range(self.stages - 2)), self.last.s()).apply_async()

    def work(self):
        self.app.Worker(
            pool="threads",
            concurrency=self.order.concurrency or 8,
            without_gossip=True,
            without_mingle=True,
            without_heartbeat=True,
            loglevel="ERROR",
            quiet=True,
        ).start()

    def left(self):
        return self.redis.llen(QUEUE) + self.redis.hlen("unacked")


if __name__ == "__main__":
    run(CeleryPeer)
