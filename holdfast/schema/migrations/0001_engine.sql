-- The engine's tables. A state is a table: a stage of an item is a row in exactly one of waiting, delayed and leases,
-- or, finished, only in outcomes. Times are microseconds since 1970 in UTC; JSON is text.

CREATE TABLE holdfast_pipelines (
    id {identity},
    name TEXT NOT NULL UNIQUE,
    -- Grows whenever a registration changes something; whoever completes work compares the sum with what it knows.
    generation BIGINT NOT NULL,
    created_at BIGINT NOT NULL,
    updated_at BIGINT NOT NULL
);

CREATE TABLE holdfast_stages (
    id {identity},
    pipeline BIGINT NOT NULL REFERENCES holdfast_pipelines (id),
    name TEXT NOT NULL,
    position INTEGER NOT NULL,
    after TEXT NOT NULL,
    version TEXT NOT NULL,
    max_attempts INTEGER NOT NULL,
    active SMALLINT NOT NULL CHECK (active IN (0, 1)),
    created_generation BIGINT NOT NULL,
    changed_generation BIGINT NOT NULL,
    -- Items that were there before the stage: from this id on up to that one they have not been looked at yet.
    backfill_next BIGINT,
    backfill_until BIGINT,
    UNIQUE (pipeline, name)
);

CREATE TABLE holdfast_items (
    id {identity},
    pipeline BIGINT NOT NULL,
    key TEXT {bytewise} NOT NULL,
    data TEXT NOT NULL,
    priority INTEGER NOT NULL,
    created_at BIGINT NOT NULL,
    updated_at BIGINT NOT NULL,
    UNIQUE (pipeline, key)
);

-- pending. The primary key is the order of claiming, and its only index.
CREATE TABLE holdfast_waiting (
    stage BIGINT NOT NULL,
    priority INTEGER NOT NULL,
    item BIGINT NOT NULL,
    attempts INTEGER NOT NULL,
    alone SMALLINT NOT NULL,
    rerun SMALLINT NOT NULL,
    PRIMARY KEY (stage, priority, item)
) {keyed} {hot};

-- retry_later
CREATE TABLE holdfast_delayed (
    item BIGINT NOT NULL,
    stage BIGINT NOT NULL,
    due_at BIGINT NOT NULL,
    attempts INTEGER NOT NULL,
    alone SMALLINT NOT NULL,
    rerun SMALLINT NOT NULL,
    error TEXT,
    PRIMARY KEY (item, stage)
) {keyed};
CREATE INDEX ix_holdfast_delayed_due ON holdfast_delayed (due_at);
CREATE INDEX ix_holdfast_delayed_stage ON holdfast_delayed (stage, item);

-- in_progress. The id is the token: ids only grow. No other index, so that moving on to the next stage writes none.
CREATE TABLE holdfast_leases (
    id {identity},
    item BIGINT NOT NULL,
    stage BIGINT NOT NULL,
    worker BIGINT NOT NULL,
    attempt INTEGER NOT NULL,
    alone SMALLINT NOT NULL,
    rerun SMALLINT NOT NULL,
    since BIGINT NOT NULL
) {hot};

-- done, skipped, failed, exhausted, cancelled: the checkpoint.
CREATE TABLE holdfast_outcomes (
    item BIGINT NOT NULL,
    stage BIGINT NOT NULL,
    state TEXT NOT NULL CHECK (state IN ('done', 'skipped', 'failed', 'exhausted', 'cancelled')),
    attempts INTEGER NOT NULL,
    lease BIGINT,
    started_at BIGINT,
    ended_at BIGINT NOT NULL,
    version TEXT,
    output_hash TEXT,
    error TEXT,
    result TEXT,
    PRIMARY KEY (item, stage)
) {keyed};
CREATE INDEX ix_holdfast_outcomes_bad ON holdfast_outcomes (stage, state, item) WHERE state NOT IN ('done', 'skipped');

-- Who is alive, and until when without another heartbeat. A lease whose worker is not here belongs to nobody.
CREATE TABLE holdfast_workers (
    id BIGINT PRIMARY KEY,
    name TEXT NOT NULL,
    host TEXT NOT NULL,
    process TEXT NOT NULL,
    clock TEXT NOT NULL,
    started_at BIGINT NOT NULL,
    beat_at BIGINT NOT NULL,
    alive_until BIGINT NOT NULL,
    lease_us BIGINT NOT NULL,
    stages TEXT NOT NULL,
    facts TEXT NOT NULL
);

-- How many stages of items are in which state, and how long attempts took (in buckets of growing width).
-- One set of rows per writer, added up on reading; those of writers that are gone are folded into slot 0.
CREATE TABLE holdfast_counts (
    slot BIGINT NOT NULL,
    stage BIGINT NOT NULL,
    state TEXT NOT NULL CHECK (state IN (
        'pending', 'retry_later', 'in_progress', 'done', 'skipped', 'failed', 'exhausted', 'cancelled')),
    bucket SMALLINT NOT NULL,
    n BIGINT NOT NULL,
    total_us BIGINT NOT NULL,
    most_us BIGINT NOT NULL,
    PRIMARY KEY (slot, stage, state, bucket)
) {keyed} {hot};

-- The newest transaction of each writer: after a lost reply to COMMIT it tells whether the commit took place.
CREATE TABLE holdfast_commits (
    writer BIGINT PRIMARY KEY,
    seq BIGINT NOT NULL,
    at BIGINT NOT NULL
) {hot};

-- How far the time of day was ahead of the machine's clock since boot: a jump means that somebody set the clock.
CREATE TABLE holdfast_clock (
    name TEXT PRIMARY KEY,
    ahead BIGINT NOT NULL
);

-- What is not routine. An uneventful attempt is told by its outcome.
CREATE TABLE holdfast_events (
    id {identity},
    at BIGINT NOT NULL,
    event TEXT NOT NULL,
    pipeline BIGINT,
    item BIGINT,
    stage BIGINT,
    data TEXT NOT NULL
);
CREATE INDEX ix_holdfast_events_kind ON holdfast_events (event, at);
CREATE INDEX ix_holdfast_events_item ON holdfast_events (item, id);

-- One row per item and stage with its state, as if it were a table.
CREATE VIEW holdfast_item_stages AS
SELECT i.pipeline, i.id AS item, i.key, w.stage, 'pending' AS state, w.attempts,
       CAST(NULL AS BIGINT) AS started_at, CAST(NULL AS BIGINT) AS ended_at, CAST(NULL AS BIGINT) AS elapsed_us,
       CAST(NULL AS BIGINT) AS next_attempt_at, CAST(NULL AS TEXT) AS error, i.updated_at
FROM holdfast_waiting w JOIN holdfast_items i ON i.id = w.item
UNION ALL
SELECT i.pipeline, i.id, i.key, d.stage, 'retry_later', d.attempts,
       NULL, NULL, NULL, d.due_at, d.error, i.updated_at
FROM holdfast_delayed d JOIN holdfast_items i ON i.id = d.item
UNION ALL
SELECT i.pipeline, i.id, i.key, l.stage, 'in_progress', l.attempt,
       l.since, NULL, NULL, NULL, NULL, l.since
FROM holdfast_leases l JOIN holdfast_items i ON i.id = l.item
UNION ALL
SELECT i.pipeline, i.id, i.key, o.stage, o.state, o.attempts,
       o.started_at, o.ended_at, o.ended_at - o.started_at, NULL, o.error, o.ended_at
FROM holdfast_outcomes o JOIN holdfast_items i ON i.id = o.item
WHERE NOT EXISTS (SELECT 1 FROM holdfast_waiting w WHERE w.stage = o.stage AND w.priority = i.priority AND w.item = o.item)
  AND NOT EXISTS (SELECT 1 FROM holdfast_delayed d WHERE d.item = o.item AND d.stage = o.stage)
  AND NOT EXISTS (SELECT 1 FROM holdfast_leases l WHERE l.item = o.item AND l.stage = o.stage);

-- Derived, never stored. A stage that its pipeline no longer has does not count.
CREATE VIEW holdfast_item_status AS
SELECT i.pipeline, i.id AS item, i.key,
    CASE
        WHEN EXISTS (SELECT 1 FROM holdfast_item_stages x JOIN holdfast_stages s ON s.id = x.stage AND s.active = 1
                     WHERE x.item = i.id AND x.state = 'in_progress') THEN 'in_progress'
        WHEN EXISTS (SELECT 1 FROM holdfast_item_stages x JOIN holdfast_stages s ON s.id = x.stage AND s.active = 1
                     WHERE x.item = i.id AND x.state IN ('pending', 'retry_later')) THEN 'pending'
        WHEN EXISTS (SELECT 1 FROM holdfast_item_stages x JOIN holdfast_stages s ON s.id = x.stage AND s.active = 1
                     WHERE x.item = i.id AND x.state IN ('failed', 'exhausted')) THEN 'failed'
        WHEN EXISTS (SELECT 1 FROM holdfast_item_stages x JOIN holdfast_stages s ON s.id = x.stage AND s.active = 1
                     WHERE x.item = i.id AND x.state = 'cancelled') THEN 'cancelled'
        WHEN EXISTS (SELECT 1 FROM holdfast_stages s WHERE s.pipeline = i.pipeline AND s.active = 1
                     AND s.backfill_next IS NOT NULL AND i.id >= s.backfill_next AND i.id <= s.backfill_until) THEN 'pending'
        ELSE 'done'
    END AS status
FROM holdfast_items i;

CREATE VIEW holdfast_stage_stats AS
SELECT s.pipeline, s.id AS stage, s.name, c.state, 
       CAST(SUM(c.n) AS BIGINT) AS n, CAST(SUM(c.total_us) AS BIGINT) AS total_us, MAX(c.most_us) AS most_us
FROM holdfast_counts c JOIN holdfast_stages s ON s.id = c.stage
GROUP BY s.pipeline, s.id, s.name, c.state;

CREATE TABLE holdfast_schema_version (
    version INTEGER PRIMARY KEY,
    name TEXT NOT NULL,
    migrated_at BIGINT NOT NULL
);
