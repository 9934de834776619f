# mypy: ignore-errors
"""DBOS: workflows on a queue that is polled as often as allowed; steps are steps of one workflow."""

import os
import random
import threading
import time

from dbos import DBOS, DBOSClient

from benchmarks.peers.common import Asker, Peer, run, sqlite_file

QUEUE = "bench"
POLL_SECONDS = 0.01


class Dbos(Peer):
    def __init__(self, order):
        super().__init__(order)
        self._client = None
        self._asker = None
        if self.url.startswith("sqlite"):
            sqlite_file(self.url)

        @DBOS.step()
        def step(number):
            return number

        @DBOS.workflow(name="items")
        def items(number):
            if self.stages > 1:
                for _ in range(self.stages):
                    step(number)
            self.handle_in_thread(number)

        @DBOS.workflow(name="paced")
        def paced(number, stage):
            """One stage as a workflow of its own: the limit of a queue is one of workflows."""
            cell = number * self.stages + stage - 1
            self.board.start(cell)
            time.sleep(random.Random(cell).uniform(0.005, 0.05))
            if stage < self.stages:
                DBOS.enqueue_workflow(QUEUE, paced, number, stage + 1)

    def _launch(self):
        DBOS(
            config={
                "name": "bench",
                "system_database_url": self.url,
                "application_version": "1",
                "log_level": "ERROR",
                # A process that takes over recovers what its predecessor of the same name left; two at once need two names.
                "executor_id": "one" if self.order.hold else str(os.getpid()),
                "sys_db_pool_size": 20,
                "max_executor_threads": max(64, self.order.concurrency),
            }
        )
        DBOS.launch()
        limit = {"limiter": {"limit": self.order.rate, "period": 1.0}} if self.order.rate else {}
        DBOS.register_queue(QUEUE, polling_interval_sec=POLL_SECONDS, **limit)

    def make(self):
        self._launch()
        DBOS.destroy()

    def add_one(self, number):
        self._client = self._client or DBOSClient(system_database_url=self.url)
        name, *more = ("paced", 1) if self.order.rate else ("items",)
        self._client.enqueue({"queue_name": QUEUE, "workflow_name": name, "app_version": "1"}, number, *more)

    def work(self):
        self._launch()
        threading.Event().wait()

    def left(self):
        self._asker = self._asker or Asker(self.url)
        table = "workflow_status" if self.url.startswith("sqlite") else "dbos.workflow_status"
        return self._asker.number(f"SELECT count(*) FROM {table} WHERE status IN ('ENQUEUED', 'PENDING')")


if __name__ == "__main__":
    run(Dbos)
