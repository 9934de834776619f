"""Your own tables: the same guarantees on a status column you already have.

Works on any SQLAlchemy 2 model or Table, with sync and async engines and sessions, and needs no table of ours.

    jobs = TableMapping(Job, holder="locked_by", heartbeat="last_heartbeat", attempts="attempts", error="error")
    Loop(engine, jobs, handler, batch=10, concurrency=4).run()

Below the loop are its parts, for whoever has a loop already: `claim`, `complete`, `fail`, `release`, `heartbeat`,
`requeue_stale`; `held` around work that holds rows of several tables; `insert_once`.
"""

from holdfast.adopt.claim import claim
from holdfast.adopt.counters import Counters, Left
from holdfast.adopt.finish import complete, fail, release, where_is
from holdfast.adopt.heartbeat import heartbeat
from holdfast.adopt.held import Unit, held
from holdfast.adopt.holding import Finished, Held
from holdfast.adopt.insert_once import insert_once
from holdfast.adopt.job import Job, with_session
from holdfast.adopt.loop import Loop, run_job_loop
from holdfast.adopt.mapping import TableMapping
from holdfast.adopt.stale import Requeued, fail_spent, requeue_stale
from holdfast.adopt.waiting import Waiting, waiting

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
