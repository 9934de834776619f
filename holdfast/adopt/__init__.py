"""Your own tables: the same guarantees on a status column you already have.

Works with any SQLAlchemy 2 model or Table, with sync and async engines and sessions. Adds no tables to your database.

    jobs = TableMapping(Job, holder="locked_by", heartbeat="last_heartbeat", attempts="attempts", error="error")
    Loop(engine, jobs, handler, batch=10, concurrency=4).run()

If you already have a loop, use its parts: `claim`, `complete`, `fail`, `release`, `heartbeat`, `requeue_stale`. `held`
wraps work that holds rows of several tables. `insert_once` inserts a row unless it exists.
"""

from holdfast.adopt.loop.counters import Counters, Left
from holdfast.adopt.loop.job import Job, with_session
from holdfast.adopt.loop.loop import Loop, run_job_loop
from holdfast.adopt.rows.claim import Waiting, claim, waiting
from holdfast.adopt.rows.finish import complete, fail, release, where_is
from holdfast.adopt.rows.heartbeat import heartbeat
from holdfast.adopt.rows.insert_once import insert_once
from holdfast.adopt.rows.stale import Requeued, fail_spent, requeue_stale
from holdfast.adopt.table.held_row import Finished, Held
from holdfast.adopt.table.mapping import TableMapping
from holdfast.adopt.unit_of_work import Unit, held

__all__ = [
    "Counters",
    "Finished",
    "Held",
    "Job",
    "Left",
    "Loop",
    "Requeued",
    "TableMapping",
    "Unit",
    "Waiting",
    "claim",
    "complete",
    "fail",
    "fail_spent",
    "heartbeat",
    "held",
    "insert_once",
    "release",
    "requeue_stale",
    "run_job_loop",
    "waiting",
    "where_is",
    "with_session",
]
