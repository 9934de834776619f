# mypy: ignore-errors
"""Dramatiq on Redis: actors in threads. Steps are a pipeline."""

import threading

import dramatiq
from dramatiq.brokers.redis import RedisBroker

from benchmarks.peers.common import Peer, run

THREADS = 8


class DramatiqPeer(Peer):
    def __init__(self, order):
        super().__init__(order)
        self.broker = RedisBroker(url=self.url)
        dramatiq.set_broker(self.broker)

        @dramatiq.actor
        def step(number):
            return number

        @dramatiq.actor
        def last(number):
            self.handle_in_thread(number)

        self.step, self.last = step, last

    def add_one(self, number):
        if self.stages == 1:
            self.last.send(number)
        else:
            steps = [self.step.message(number), *(self.step.message() for _ in range(self.stages - 2))]
            dramatiq.pipeline([*steps, self.last.message()]).run()

    def work(self):
        dramatiq.Worker(self.broker, worker_timeout=10, worker_threads=self.order.concurrency or THREADS).start()
        threading.Event().wait()

    def left(self):
        return self.broker.client.llen("dramatiq:default") + self.broker.client.hlen("dramatiq:default.msgs")


if __name__ == "__main__":
    run(DramatiqPeer)
