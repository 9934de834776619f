"""A store with any number of items in every state, made by statements over sets: quicker than working on them.

    crowd = Crowd(app)
    crowd.grow(500)
    crowd.grow(20_000)         # so many in all

Two pipelines: `p` with the stages a and b has nearly all the items; `q`, with the stage c, has three, which came first.
Counts are those of the rows. However many items there are, few are in progress: those that workers have in hand.
"""

from __future__ import annotations

from tests.support.harness import App

#: Twenty items in a row: their states at a and at b. `again`: done, and sent back.
TWENTY: tuple[tuple[str, str | None], ...] = (
    *[("done", "done")] * 9,
    ("done", "skipped"),
    ("done", "pending"),
    ("done", "pending"),
    ("done", "retry_later"),
    ("failed", None),
    ("exhausted", None),
    ("cancelled", None),
    ("pending", None),
    ("done", "failed"),
    ("again", None),
    ("done", "exhausted"),
)
WAITS_AT_B = TWENTY.index(("done", "pending"))
#: Of these, the first twenties have one in progress that waits at b, and one in which a is being run again.
LEASED = 20
#: The number of the first item of `p`; those of `q` are below.
FIRST = 100


class Crowd:
    """Fills the store of an App."""

    def __init__(self, app: App) -> None:
        self.app = app
        self.items = 0
        app.pipeline({"c": []}, name="q")
        app.add(["first", "second", "third"])
        app.complete(app.claim()[0])
        app.store.write(lambda tx: [tx.record("paused", pipeline=1, reason="rare") for _ in range(5)])
        app.pipeline({"a": [], "b": ["a"]}, name="p")
        self.pipeline = app.stage("a").pipeline
        self.a, self.b = app.stage("a").id, app.stage("b").id

    def key(self, place: int) -> str:
        """The key of an item by its place in `p`."""
        return f"key-{place:08d}"

    def number(self, place: int) -> int:
        return FIRST + place

    def grow(self, items: int) -> None:
        """Let there be so many items in `p`: a multiple of twenty."""
        begun, self.items = self.items, items
        numbers = self._numbers(FIRST + begun, FIRST + items - 1)
        digits = f"CAST(x - {FIRST} AS TEXT)"
        self._insert(
            "items (id, pipeline, key, data, priority, created_at, updated_at)",
            f"x, {self.pipeline}, 'key-' || substr('0000000', length({digits})) || {digits}, '{{\"n\":1}}', 0, x, x",
            numbers,
        )
        for place, (at_a, at_b) in enumerate(TWENTY):
            chosen = f"{numbers} WHERE (x - {FIRST}) % 20 = {place}"
            self._put(self.a, at_a, chosen)
            if at_b is not None:
                self._put(self.b, at_b, chosen)
        self._tell(numbers)
        held = TWENTY.index(("done", "failed"))
        self._insert(
            "memos (stage, item, name, state, version, idempotency_key, lease, estimate, cost, value, at)",
            f"{self.b}, x, 'call', 'intended', '1', 'k' || x, 0, NULL, NULL, NULL, 0",
            f"{numbers} WHERE (x - {FIRST}) % 20 = {held}",
        )
        self._pay(numbers)
        self._group(numbers)
        if not begun:
            self._lease()

    # The parts ------------------------------------------------------------------------------------------------

    def _put(self, stage: int, state: str, chosen: str) -> None:
        if state in ("pending", "again"):
            rerun = int(state == "again")
            self._insert(
                "waiting (stage, priority, item, attempts, alone, rerun)", f"{stage}, 0, x, 0, 0, {rerun}", chosen
            )
        if state == "retry_later":
            due = self.app.clock.now() + 10**12
            columns = "delayed (item, stage, due_at, attempts, alone, rerun, error, error_group)"
            self._insert(columns, f"x, {stage}, {due} + x, 1, 0, 0, 'torn page', 'torn'", chosen)
        if state not in ("pending", "retry_later"):
            ended = "done" if state == "again" else state
            error = "NULL" if ended == "done" else "'no such page ' || x"
            group = "'missing'" if ended in ("failed", "exhausted") else "NULL"
            columns = (
                "item, stage, state, attempts, lease, started_at, ended_at, "
                "version, output_hash, result, error, error_group"
            )
            values = f"x, {stage}, '{ended}', 1, x, x, x + 5, '1', 'hash', '{{\"n\":2}}', {error}, {group}"
            self._insert(f"outcomes ({columns})", values, chosen)
            if group != "NULL" and self.app.store.connect().dialect.name == "sqlite":
                self._insert("grouped (error_group, item, stage)", f"{group}, x, {stage}", chosen)
        self._count(stage, "pending" if state == "again" else state, f"COUNT(*) FROM {chosen}")
        if state == "again":
            self._insert("changed (pipeline, item)", f"{self.pipeline}, x", chosen)

    def _tell(self, numbers: str) -> None:
        """Two or three events for each item, in the order of items."""
        self._insert(
            "events (at, event, pipeline, item, stage, amount, resource, data)",
            f"{self.app.clock.now()} + x, e.event, {self.pipeline}, x, {self.a}, e.amount, 'gemini', '{{\"attempt\":1}}'",
            f"{numbers} CROSS JOIN (SELECT 1 AS n, 'attempt_failed' AS event, CAST(NULL AS BIGINT) AS amount "
            "UNION ALL SELECT 2, 'retried', NULL UNION ALL SELECT 3, 'in_doubt', 1000) AS e "
            "WHERE e.n < 3 OR x % 20 = 0 ORDER BY x, e.n",
        )

    def _pay(self, numbers: str) -> None:
        """One paid call for each item, and the sums of them all."""
        self._insert(
            "calls (stage, item, name, state, lease, life, amount, resource, model, tokens_in, tokens_out, facts, day, at)",
            f"{self.a}, x, 'call', 'done', x, 1, 1000, '', 'm', 1, 1, '{{}}', 1, {self.app.clock.now()} + x",
            numbers,
        )
        self.app.execute("DELETE FROM holdfast_money")
        self._insert(
            "money (slot, stage, resource, model, day, payments, amount, doubts, in_doubt, tokens_in, tokens_out)",
            f"0, {self.a}, '', 'm', 1, COUNT(*), SUM(amount), 0, 0, SUM(tokens_in), SUM(tokens_out)",
            "holdfast_calls",
        )

    def _group(self, numbers: str) -> None:
        """What failed of the same cause."""
        self.app.execute("DELETE FROM holdfast_error_groups")
        for group, n in (("missing", "COUNT(*) / 5"), ("torn", "COUNT(*) / 20")):
            self._insert(
                "error_groups (slot, stage, id, kind, place, message, n, amount, first_seen, last_seen, item)",
                f"0, {self.a}, '{group}', 'ValueError', 'p.py: a', 'no', {n}, 0, 1, 2, {FIRST}",
                numbers,
            )

    def _lease(self) -> None:
        last = FIRST + 20 * LEASED - 1
        for stage, place, rerun, was in ((self.b, WAITS_AT_B, 0, "pending"), (self.a, 0, 1, "done")):
            chosen = f"{self._numbers(FIRST, last)} WHERE (x - {FIRST}) % 20 = {place}"
            self._insert(
                "leases (item, stage, worker, attempt, alone, rerun, since)", f"x, {stage}, 7, 1, 0, {rerun}, 5", chosen
            )
            if rerun:
                self._insert("changed (pipeline, item)", f"{self.pipeline}, x", chosen)
            self._count(stage, "in_progress", str(LEASED))
            self._count(stage, was, str(-LEASED))
        self.app.execute(
            f"DELETE FROM holdfast_waiting WHERE stage = {self.b} AND item <= {last} AND (item - {FIRST}) % 20 = {WAITS_AT_B}"
        )

    def _insert(self, where: str, values: str, chosen: str) -> None:
        self.app.execute(f"INSERT INTO holdfast_{where} SELECT {values} FROM {chosen}")

    def _count(self, stage: int, state: str, n: str) -> None:
        self.app.execute(
            "INSERT INTO holdfast_counts (slot, stage, state, bucket, n, total_us, most_us) "
            f"SELECT 0, {stage}, '{state}', -1, 0, 0, 0 WHERE true ON CONFLICT (slot, stage, state, bucket) DO NOTHING"
        )
        self.app.execute(
            f"UPDATE holdfast_counts SET n = n + (SELECT {n}) WHERE slot = 0 AND stage = {stage} AND state = '{state}' "
            "AND bucket = -1"
        )
        if state in ("done", "skipped"):
            self.app.execute(
                "INSERT INTO holdfast_versions (slot, stage, version, type, n) "
                f"SELECT 0, {stage}, '1', '', 0 WHERE true ON CONFLICT (slot, stage, version, type) DO NOTHING"
            )
            self.app.execute(
                f"UPDATE holdfast_versions SET n = n + (SELECT {n}) WHERE slot = 0 AND stage = {stage} AND version = '1'"
            )

    def _numbers(self, low: int, high: int) -> str:
        if self.app.store.connect().dialect.name == "postgres":
            return f"generate_series({low}::bigint, {high}::bigint) AS n(x)"
        return f"(WITH RECURSIVE n(x) AS (SELECT {low} UNION ALL SELECT x + 1 FROM n WHERE x < {high}) SELECT x FROM n) AS n"
