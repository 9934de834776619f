# mypy: ignore-errors
"""RQ on Redis: a SimpleWorker, which does not fork for every job; nothing is kept. Steps depend on each other."""

from redis import Redis
from rq import Queue, SimpleWorker
from rq.registry import DeferredJobRegistry, StartedJobRegistry

from benchmarks.peers import rq_ as me
from benchmarks.peers.common import Peer, run

CHUNK = 1000

#: Jobs are found by the path of a function: this is what they act for, in the copy of this module that the worker imports.
PEER = None


def step(number):
    return None


def last(number):
    PEER.handle_in_thread(number)


class RQ(Peer):
    def __init__(self, order):
        super().__init__(order)
        self.redis = Redis(unix_socket_path=self.url.removeprefix("unix://"))
        self.queue = Queue("bench", connection=self.redis)

    def add_bulk(self, items):
        if self.stages > 1:
            super().add_bulk(items)
            return
        for at in range(0, items, CHUNK):
            numbers = range(at, min(at + CHUNK, items))
            self.queue.enqueue_many([Queue.prepare_data(me.last, args=(number,), result_ttl=0) for number in numbers])

    def add_one(self, number):
        before = None
        for at in range(1, self.stages + 1):
            # What others depend on must be kept until they have begun.
            keep = 0 if at == self.stages else 600
            function = me.last if at == self.stages else me.step
            before = self.queue.enqueue(function, number, depends_on=before, result_ttl=keep)

    def work(self):
        me.PEER = self
        SimpleWorker([self.queue], connection=self.redis).work(logging_level="ERROR")

    def left(self):
        others = (StartedJobRegistry, DeferredJobRegistry)
        return self.queue.count + sum(one(queue=self.queue).count for one in others)


if __name__ == "__main__":
    run(RQ)
