"""Who is measured: the raw database, holdfast, and the peers, each with the versions that are installed for it."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path

from benchmarks.environments import python_of

SQLITE, POSTGRES, REDIS = "sqlite", "postgres", "redis"


@dataclass(frozen=True)
class Contender:
    """A script that carries out orders, and what it can do."""

    name: str
    module: str
    databases: tuple[str, ...]
    workloads: tuple[str, ...]
    kind: str = ""
    #: What pip installs for it; nothing for what runs in this environment.
    packages: tuple[str, ...] = ()
    #: How its settings differ from what it does by default, for the table.
    settings: str = ""
    #: Which part of the items it gets: slow ones are measured with fewer, so that a run ends.
    share: float = 1.0
    #: How many worker processes it can be measured with.
    processes: tuple[int, ...] = (1, 2)
    #: Whether it takes over only when it is started after another's death (W6).
    successor: bool = False

    @property
    def is_peer(self) -> bool:
        return bool(self.packages)

    @property
    def version(self) -> str:
        return self.packages[0].partition("==")[2] if self.packages else ""

    @property
    def title(self) -> str:
        return f"{self.name} {self.version}".strip()

    def command(self) -> list[str]:
        """How to start it. A peer's environment must have been made."""
        python = python_of(self.key) if self.is_peer else Path(sys.executable)
        return [str(python), "-m", self.module]

    @property
    def key(self) -> str:
        """Its name on the command line."""
        return self.name.lower().replace(" ", "-")


RAW = Contender(
    "raw",
    "benchmarks.raw",
    (SQLITE, POSTGRES),
    ("W1", "W2", "W3", "W5", "W10"),
    processes=(1,),
    settings="hand-written statements for each row, one connection, batches of 500",
)
RAW_IN_BULK = Contender(
    "raw in bulk",
    "benchmarks.raw",
    (SQLITE, POSTGRES),
    ("W2", "W3"),
    "bulk",
    processes=(1,),
    settings="the same rows by COPY, or many in one VALUES",
)
ASYNC = Contender(
    "holdfast async",
    "benchmarks.ours",
    (SQLITE, POSTGRES),
    ("W1", "W2", "W3", "W4", "W5", "W6", "W7", "W8", "W9", "W10", "W11", "W12"),
    "async",
)
SYNC = Contender("holdfast sync", "benchmarks.ours", (SQLITE, POSTGRES), ("W2", "W3", "W4", "W6", "W9"), "sync")

_BASIC = ("W1", "W2", "W3", "W4")

#: Pinned here and nowhere else.
PEERS = (
    Contender(
        "PGQueuer",
        "benchmarks.peers.pgqueuer_",
        (POSTGRES,),
        (*_BASIC, "W5", "W6"),
        packages=("pgqueuer==1.6.0", "asyncpg==0.32.0", "uvloop==0.23.0"),
        settings="asyncpg, uvloop, batch_size=500, durable tables",
    ),
    Contender(
        "Huey",
        "benchmarks.peers.huey_",
        (SQLITE,),
        (*_BASIC, "W5", "W6"),
        packages=("huey==3.5.4",),
        share=0.25,
        settings="fsync=True, WAL, results off, 1 worker thread",
    ),
    Contender(
        "Procrastinate",
        "benchmarks.peers.procrastinate_",
        (POSTGRES,),
        (*_BASIC, "W5", "W6"),
        share=0.05,
        packages=("procrastinate==3.10.0", "psycopg[binary]==3.3.8"),
        settings="async, concurrency=30, delete_jobs=always",
    ),
    Contender(
        "DBOS",
        "benchmarks.peers.dbos_",
        (SQLITE, POSTGRES),
        (*_BASIC, "W6", "W7"),
        share=0.05,
        successor=True,
        packages=("dbos==3.3.0", "psycopg[binary]==3.3.8"),
        settings="queue polled every 10 ms, synchronous=FULL on SQLite",
    ),
    Contender(
        "Absurd",
        "benchmarks.peers.absurd_",
        (POSTGRES,),
        (*_BASIC, "W6"),
        share=0.05,
        packages=("absurd-sdk==0.5.1", "absurdctl==0.5.1", "psycopg[binary]==3.3.8"),
        settings="async worker, batches of 100",
    ),
    Contender(
        "Chancy",
        "benchmarks.peers.chancy_",
        (POSTGRES,),
        _BASIC,
        share=0.25,
        packages=("chancy==0.26.0", "psycopg[binary]==3.3.8"),
        settings="async executor, concurrency=500, eager polling",
    ),
    Contender(
        "SAQ",
        "benchmarks.peers.saq_",
        (POSTGRES,),
        _BASIC,
        share=0.05,
        packages=("saq[postgres]==0.26.4", "psycopg[binary]==3.3.8"),
        settings="concurrency=20, ttl=-1",
    ),
    Contender(
        "litequeue",
        "benchmarks.peers.litequeue_",
        (SQLITE,),
        _BASIC,
        packages=("litequeue==0.9",),
        share=0.25,
        settings="synchronous=FULL, a loop of pop and done",
    ),
    Contender(
        "Celery",
        "benchmarks.peers.celery_",
        (REDIS,),
        _BASIC,
        packages=("celery[redis]==5.7.0", "redis==8.1.0"),
        share=0.1,
        settings="threads pool, acks_late, no results",
    ),
    Contender(
        "Dramatiq",
        "benchmarks.peers.dramatiq_",
        (REDIS,),
        _BASIC,
        share=0.1,
        packages=("dramatiq[redis]==2.2.1", "redis==8.1.0"),
        settings="8 threads",
    ),
    Contender(
        "RQ",
        "benchmarks.peers.rq_",
        (REDIS,),
        _BASIC,
        packages=("rq==2.12.0", "redis==8.1.0"),
        share=0.02,
        settings="SimpleWorker: no fork per job",
    ),
)
