"""The limit to compare with: the same rows, written by hand.

One connection, one thread, batches of 500, the same tables and the same durability, prepared statements. In one
transaction a batch is finished and the next one claimed, or moved on to its next stage in place. What a handler would need
is read, and what it would return is sent. There is no worker, no heartbeat, no handler, no check of results, and nobody
else to watch out for. Items are added by COPY, or by many rows at once.

Results are sent item by item, as one writes it by hand (`executemany`, which is pipelined on PostgreSQL); or, with the
kind `bulk`, in the fastest way known for all of a batch.
"""

from __future__ import annotations

import sqlite3
import time
from collections import Counter
from typing import Any, Protocol

import msgspec

from benchmarks.board import now as instant
from benchmarks.child import Facts, Order, cpu_seconds, main, most_memory_mb
from benchmarks.ours import app_of, fill
from benchmarks.raw_export import export
from benchmarks.steady import steady_rate

BATCH = 500
#: Rows in one VALUES list.
ROWS = 100
#: Items per transaction when they are added in bulk.
CHUNK = 2000
#: Who holds the leases and whose counts these are.
ME = 7
#: As long as the hashes that are stored.
HASH = "0" * 32
OUTCOME = (
    "item, stage, state, attempts, lease, started_at, ended_at, version, input_hash, output_hash, cost, life, error, "
    "result"
)

#: Lease, item, attempt, key, data.
Held = tuple[int, int, int, str, str]
#: Number, key, data.
New = tuple[int, str, str]
#: Stage, state and bucket of a count.
Change = tuple[int, str, int]

_to_json = msgspec.json.Encoder().encode


class Raw(Protocol):
    """The statements of one database."""

    def begin(self) -> None: ...

    def add(self, items: list[New], now: int) -> None: ...

    def claim(self, stage: int, now: int) -> None: ...

    def finish(self, held: list[Held], stage: int, onward: int | None, now: int) -> None: ...

    def count(self, changes: Counter[Change]) -> None: ...

    def commit(self) -> list[Held] | None:
        """End the transaction; what was claimed in it, if anything was asked for."""
        ...


def open_raw(order: Order) -> Raw:
    bulk = order.kind == "bulk"
    if order.url.startswith("sqlite"):
        return BulkSQLite(order.url) if bulk else RawSQLite(order.url)
    return BulkPostgres(order.url) if bulk else RawPostgres(order.url)


def add(order: Order) -> Facts:
    with app_of(order) as app:
        app.register()
    raw = open_raw(order)
    items = [(number + 1, f"item-{number:08d}", f'{{"page":{number}}}') for number in range(order.items)]
    size = CHUNK if order.bulk else 1
    order.ready()
    began = instant()
    for at in range(0, len(items), size):
        part = items[at : at + size]
        raw.begin()
        raw.add(part, time.time_ns() // 1000)
        raw.count(Counter({(1, "pending", -1): len(part)}))
        raw.commit()
    return {"seconds": instant() - began}


def drain(order: Order) -> Facts:
    raw = open_raw(order)
    order.ready()
    spent, began = cpu_seconds(), instant()
    finished = len(run(raw, order.stages, order.items * order.stages))
    ended = instant()
    if finished != order.items * order.stages:
        raise SystemExit(f"the raw loop finished {finished} stages instead of {order.items * order.stages}")
    return {"began": began, "ended": ended, "cpu_seconds": cpu_seconds() - spent, "memory_mb": most_memory_mb()}


def drain_some(order: Order) -> Facts:
    raw = open_raw(order)
    order.ready()
    times = run(raw, 1, order.most)
    return {"rate": steady_rate(times, order.most), "memory_mb": most_memory_mb()}


def run(raw: Raw, stages: int, most: int) -> list[float]:
    """Take waiting items through the stages 1, 2, …; return when each step was committed."""
    times: list[float] = []
    held: list[Held] = []
    stage = stages
    while True:
        now = time.time_ns() // 1000
        raw.begin()
        onward = stage + 1 if stage < stages else None
        changes: Counter[Change] = Counter()
        if held:
            raw.finish(held, stage, onward, now)
            changes[stage, "in_progress", -1] -= len(held)
            changes[stage, "done", 0] += len(held)
        if onward is not None:
            changes[onward, "in_progress", -1] += len(held)
        else:
            # How many come back is known too late for this transaction; the same rows are written either way.
            changes[1, "pending", -1] -= BATCH
            changes[1, "in_progress", -1] += BATCH
            raw.claim(1, now)
        raw.count(changes)
        claimed = raw.commit()
        times += [instant()] * len(held)
        stage = onward or 1
        held = held if claimed is None else claimed
        if not held or (len(times) >= most and onward is None):
            return times


class RawSQLite:
    def __init__(self, url: str) -> None:
        self._conn = sqlite3.connect(url.removeprefix("sqlite:///"), isolation_level=None)
        for pragma in (
            "journal_mode = WAL",
            "synchronous = FULL",
            "temp_store = MEMORY",
            "cache_size = -32000",
            "wal_autocheckpoint = 2000",
        ):
            self._conn.execute(f"PRAGMA {pragma}")
        self._claimed: list[Held] | None = None

    def begin(self) -> None:
        self._claimed = None
        self._conn.execute("BEGIN IMMEDIATE")

    def add(self, items: list[New], now: int) -> None:
        self._conn.executemany(
            "INSERT INTO holdfast_items (id, pipeline, key, data, priority, created_at, updated_at) "
            "VALUES (?, 1, ?, ?, 0, ?, ?)",
            [(*item, now, now) for item in items],
        )
        self._conn.executemany(
            "INSERT INTO holdfast_waiting (stage, priority, item, attempts, alone, rerun) VALUES (1, 0, ?, 0, 0, 0)",
            [(number,) for number, _, _ in items],
        )

    def claim(self, stage: int, now: int) -> None:
        run = self._conn.execute
        taken = run(
            "INSERT INTO holdfast_leases (item, stage, worker, attempt, alone, rerun, since) "
            "SELECT item, stage, ?, attempts + 1, alone, rerun, ? FROM holdfast_waiting "
            "WHERE stage = ? ORDER BY priority, item LIMIT ?",
            (ME, now, stage, BATCH),
        ).rowcount
        run(
            "DELETE FROM holdfast_waiting WHERE stage = ? AND (priority, item) IN "
            "(SELECT priority, item FROM holdfast_waiting WHERE stage = ? ORDER BY priority, item LIMIT ?)",
            (stage, stage, BATCH),
        )
        self._claimed = run(
            "SELECT l.id, l.item, l.attempt, i.key, i.data FROM holdfast_leases l JOIN holdfast_items i ON i.id = l.item "
            "WHERE l.id > (SELECT seq FROM sqlite_sequence WHERE name = 'holdfast_leases') - ?",
            (taken,),
        ).fetchall()

    def finish(self, held: list[Held], stage: int, onward: int | None, now: int) -> None:
        self._conn.executemany(
            f"INSERT INTO holdfast_outcomes ({OUTCOME}) VALUES (?, ?, 'done', ?, ?, ?, ?, '1', ?, ?, 0, 1, NULL, ?)",
            [(item, stage, attempt, lease, now, now, HASH, HASH, "null") for lease, item, attempt, _, _ in held],
        )
        if onward is None:
            self._conn.executemany(
                "DELETE FROM holdfast_leases WHERE id = ? AND stage = ?", [(lease, stage) for lease, *_ in held]
            )
        else:
            self._conn.executemany(
                "UPDATE holdfast_leases SET stage = ?, attempt = 1, alone = 0, rerun = 0, since = ? WHERE id = ? AND stage = ?",
                [(onward, now, lease, stage) for lease, *_ in held],
            )

    def count(self, changes: Counter[Change]) -> None:
        self._conn.executemany(
            "INSERT INTO holdfast_counts (slot, stage, state, bucket, n, total_us, most_us) VALUES (?, ?, ?, ?, ?, 0, 0) "
            "ON CONFLICT DO UPDATE SET n = n + excluded.n",
            [(ME, *change, n) for change, n in changes.items()],
        )

    def commit(self) -> list[Held] | None:
        self._conn.execute("COMMIT")
        return self._claimed


class BulkSQLite(RawSQLite):
    def finish(self, held: list[Held], stage: int, onward: int | None, now: int) -> None:
        # Measured per row: a JSON array 3.8 µs, executemany 5.7 µs, many rows in one VALUES 2.2 µs.
        for at in range(0, len(held), ROWS):
            part = held[at : at + ROWS]
            rows = ", ".join([f"(?, {stage:d}, 'done', ?, ?, ?, ?, '1', ?, ?, 0, 1, NULL, ?)"] * len(part))
            self._conn.execute(
                f"INSERT INTO holdfast_outcomes ({OUTCOME}) VALUES {rows}",
                [
                    value
                    for lease, item, attempt, _, _ in part
                    for value in (item, attempt, lease, now, now, HASH, HASH, "null")
                ],
            )
        leases = _to_json([lease for lease, *_ in held]).decode()
        if onward is None:
            self._conn.execute(
                "DELETE FROM holdfast_leases WHERE stage = ? AND id IN (SELECT value FROM json_each(?))",
                (stage, leases),
            )
        else:
            self._conn.execute(
                "UPDATE holdfast_leases SET stage = ?, attempt = 1, alone = 0, rerun = 0, since = ? "
                "WHERE stage = ? AND id IN (SELECT value FROM json_each(?))",
                (onward, now, stage, leases),
            )


class RawPostgres:
    def __init__(self, url: str) -> None:
        import psycopg

        self._conn: Any = psycopg.connect(url, autocommit=True, prepare_threshold=0)
        self._conn.execute("SET search_path = holdfast")
        self._claim = self._conn.cursor(binary=True)
        self._claimed: list[Held] | None = None

    def begin(self) -> None:
        self._claimed = None
        self._conn.execute("BEGIN")

    def add(self, items: list[New], now: int) -> None:
        if len(items) == 1:
            [(number, key, data)] = items
            self._conn.execute(
                "INSERT INTO items (id, pipeline, key, data, priority, created_at, updated_at) "
                "VALUES (%s, 1, %s, %s, 0, %s, %s)",
                (number, key, data, now, now),
            )
            self._conn.execute("INSERT INTO waiting VALUES (1, 0, %s, 0, 0, 0)", (number,))
            return
        cursor = self._conn.cursor()
        with cursor.copy("COPY items (id, pipeline, key, data, priority, created_at, updated_at) FROM STDIN") as copy:
            copy.write("".join(f"{number}\t1\t{key}\t{data}\t0\t{now}\t{now}\n" for number, key, data in items))
        with cursor.copy("COPY waiting (stage, priority, item, attempts, alone, rerun) FROM STDIN") as copy:
            copy.write("".join(f"1\t0\t{number}\t0\t0\t0\n" for number, _, _ in items))

    def claim(self, stage: int, now: int) -> None:
        self._claimed = self._claim.execute(
            "WITH taken AS (DELETE FROM waiting WHERE ctid = ANY(ARRAY("
            "SELECT ctid FROM waiting WHERE stage = %s ORDER BY priority, item LIMIT %s FOR UPDATE SKIP LOCKED)) "
            "RETURNING item, priority, stage, attempts, alone, rerun), "
            "leased AS (INSERT INTO leases (item, stage, worker, attempt, alone, rerun, since) "
            "SELECT item, stage, %s, attempts + 1, alone, rerun, %s FROM taken ORDER BY priority, item "
            "RETURNING id, item, attempt) "
            "SELECT l.id, l.item, l.attempt, i.key, i.data FROM leased l JOIN items i ON i.id = l.item",
            (stage, BATCH, ME, now),
        ).fetchall()

    def finish(self, held: list[Held], stage: int, onward: int | None, now: int) -> None:
        cursor = self._conn.cursor()
        cursor.executemany(
            f"INSERT INTO outcomes ({OUTCOME}) VALUES (%s, %s, 'done', %s, %s, %s, %s, '1', %s, %s, 0, 1, NULL, %s)",
            [(item, stage, attempt, lease, now, now, HASH, HASH, "null") for lease, item, attempt, _, _ in held],
        )
        if onward is None:
            cursor.executemany(
                "DELETE FROM leases WHERE id = %s AND stage = %s", [(lease, stage) for lease, *_ in held]
            )
        else:
            cursor.executemany(
                "UPDATE leases SET stage = %s, attempt = 1, alone = 0, rerun = 0, since = %s WHERE id = %s AND stage = %s",
                [(onward, now, lease, stage) for lease, *_ in held],
            )

    def count(self, changes: Counter[Change]) -> None:
        rows = ", ".join(["(%s, %s, %s, %s, %s, 0, 0)"] * len(changes))
        self._conn.execute(
            f"INSERT INTO counts AS c (slot, stage, state, bucket, n, total_us, most_us) VALUES {rows} "
            "ON CONFLICT (slot, stage, state, bucket) DO UPDATE SET n = c.n + excluded.n",
            [value for change, n in changes.items() for value in (ME, *change, n)],
        )

    def commit(self) -> list[Held] | None:
        self._conn.execute("COMMIT")
        return self._claimed


class BulkPostgres(RawPostgres):
    """Outcomes travel by COPY. Measured per row: 3.7 µs; JSON records 5.1 µs, arrays 9 µs. (COPY excludes pipeline mode,
    which saves less than it does.)"""

    def finish(self, held: list[Held], stage: int, onward: int | None, now: int) -> None:
        with self._conn.cursor().copy(f"COPY outcomes ({OUTCOME}) FROM STDIN") as copy:
            copy.write(
                "".join(
                    f"{item}\t{stage}\tdone\t{attempt}\t{lease}\t{now}\t{now}\t1\t{HASH}\t{HASH}\t0\t1\t\\N\tnull\n"
                    for lease, item, attempt, _, _ in held
                )
            )
        # Numbers as PostgreSQL writes an array: cheaper to send than a list.
        leases = f"{{{','.join(str(lease) for lease, *_ in held)}}}"
        if onward is None:
            self._conn.execute("DELETE FROM leases WHERE stage = %s AND id = ANY(%s::bigint[])", (stage, leases))
        else:
            self._conn.execute(
                "UPDATE leases SET stage = %s, attempt = 1, alone = 0, rerun = 0, since = %s "
                "WHERE stage = %s AND id = ANY(%s::bigint[])",
                (onward, now, stage, leases),
            )


if __name__ == "__main__":
    main({"add": add, "drain": drain, "drain_some": drain_some, "fill": fill, "export": export})
