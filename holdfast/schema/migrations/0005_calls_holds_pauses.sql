-- Every paid call as a row, work on hold, and stages that can be paused one by one.
-- Workers of the version before keep running beside it: they write none of the new columns, and all of these have a default.

-- on_hold: open work that waits for a person, a price or a version of its code, and that no claim sees.
CREATE TABLE holdfast_holds (
    stage BIGINT NOT NULL,
    item BIGINT NOT NULL,
    -- What releases it: a person's decision, one about a paid call in doubt, a person who accepts the price, a worker with the
    -- right version.
    kind TEXT NOT NULL CHECK (kind IN ('person', 'doubt', 'price', 'version')),
    reason TEXT NOT NULL,
    attempts INTEGER NOT NULL,
    alone SMALLINT NOT NULL,
    rerun SMALLINT NOT NULL,
    since BIGINT NOT NULL,
    PRIMARY KEY (stage, item)
) {keyed};
CREATE INDEX ix_holdfast_holds_item ON holdfast_holds (item);
CREATE INDEX ix_holdfast_holds_kind ON holdfast_holds (stage, kind, item);

-- The ledger of money: one row per paid call, and per amount that a handler reports (these have no name).
-- `amount` is what it cost or, while that is not known, what it was expected to cost.
CREATE TABLE holdfast_calls (
    id {identity},
    stage BIGINT NOT NULL,
    item BIGINT NOT NULL,
    name TEXT {bytewise} NOT NULL,
    state TEXT NOT NULL CHECK (state IN ('intended', 'done', 'rejected', 'doubtful', 'not_charged')),
    lease BIGINT NOT NULL,
    life INTEGER NOT NULL,
    amount BIGINT NOT NULL,
    -- What it counts for, and with which model; empty if none was named.
    resource TEXT NOT NULL,
    model TEXT NOT NULL,
    tokens_in BIGINT NOT NULL,
    tokens_out BIGINT NOT NULL,
    tokens_cached BIGINT NOT NULL DEFAULT 0,
    tokens_reasoning BIGINT NOT NULL DEFAULT 0,
    facts TEXT NOT NULL,
    -- The day of the call, in the zone of its resource, counted from 1970.
    day BIGINT NOT NULL,
    at BIGINT NOT NULL,
    -- Why it was rejected, or is in doubt; and the answer that was rejected.
    reason TEXT,
    value TEXT
);
CREATE INDEX ix_holdfast_calls_item ON holdfast_calls (item, stage, id);
CREATE INDEX ix_holdfast_calls_at ON holdfast_calls (at);
CREATE INDEX ix_holdfast_calls_doubtful ON holdfast_calls (stage, item) WHERE state = 'doubtful';
-- Those that are under way, to find calls whose lease was ended by a worker that does not know this table. Only the statement that
-- looks for them says it in this way: no other may be planned by this index while nothing is under way.
CREATE INDEX ix_holdfast_calls_intended ON holdfast_calls (lease) WHERE COALESCE(state, '') = 'intended';

-- Sums of the ledger per day, so that a question about money costs the same however many calls there were. One set of rows per
-- writer, as in counts; those of writers that are gone are folded into slot 0.
CREATE TABLE holdfast_money (
    slot BIGINT NOT NULL,
    stage BIGINT NOT NULL,
    resource TEXT NOT NULL,
    model TEXT NOT NULL,
    day BIGINT NOT NULL,
    payments BIGINT NOT NULL,
    amount BIGINT NOT NULL,
    doubts BIGINT NOT NULL,
    in_doubt BIGINT NOT NULL,
    tokens_in BIGINT NOT NULL,
    tokens_out BIGINT NOT NULL,
    tokens_cached BIGINT NOT NULL DEFAULT 0,
    tokens_reasoning BIGINT NOT NULL DEFAULT 0,
    PRIMARY KEY (slot, stage, resource, model, day)
) {keyed} {hot};

-- How much of the amount is not known to have been charged. Workers of the version before read the amount alone.
ALTER TABLE holdfast_spent ADD COLUMN in_doubt BIGINT NOT NULL DEFAULT 0;

-- A single stage can be paused.
ALTER TABLE holdfast_stages ADD COLUMN paused SMALLINT NOT NULL DEFAULT 0;
ALTER TABLE holdfast_stages ADD COLUMN reason TEXT;
ALTER TABLE holdfast_stages ADD COLUMN retry_after BIGINT;
ALTER TABLE holdfast_stages ADD COLUMN paused_at BIGINT;

-- How often in a row a provider has refused the API key of a resource's, or a stage's, paid calls.
ALTER TABLE holdfast_resources ADD COLUMN refusals INTEGER NOT NULL DEFAULT 0;
ALTER TABLE holdfast_stages ADD COLUMN refusals INTEGER NOT NULL DEFAULT 0;

-- Former names of a stage. And the range of items that are still to be put on hold because of the price of a new stage. A
-- worker of the version before leaves that alone.
ALTER TABLE holdfast_stages ADD COLUMN formerly TEXT NOT NULL DEFAULT '[]';
ALTER TABLE holdfast_stages ADD COLUMN hold_next BIGINT;
ALTER TABLE holdfast_stages ADD COLUMN hold_until BIGINT;
ALTER TABLE holdfast_stages ADD COLUMN hold_reason TEXT;
-- The file that a pipeline was last registered from.
ALTER TABLE holdfast_pipelines ADD COLUMN origin TEXT NOT NULL DEFAULT '';

-- Which version of its code a worker has for each stage it offers; unknown for workers of the version before.
ALTER TABLE holdfast_workers ADD COLUMN versions TEXT NOT NULL DEFAULT '{}';

-- Items that follow-ons have rerun, each with the chain of items that caused it, oldest first, as a JSON list.
CREATE TABLE holdfast_chains (
    item BIGINT PRIMARY KEY,
    led_by TEXT NOT NULL
);
-- How often a stage's items may rerun each other within an hour, how often they have, and since when.
ALTER TABLE holdfast_stages ADD COLUMN max_reruns_per_hour BIGINT NOT NULL DEFAULT 1000;
ALTER TABLE holdfast_stages ADD COLUMN reruns BIGINT NOT NULL DEFAULT 0;
ALTER TABLE holdfast_stages ADD COLUMN reruns_since BIGINT NOT NULL DEFAULT 0;

-- Which fields of an item's data stages have read so far, and which set they read now; and which fields are provenance.
ALTER TABLE holdfast_stages ADD COLUMN readings TEXT NOT NULL DEFAULT '';
ALTER TABLE holdfast_pipelines ADD COLUMN provenance TEXT NOT NULL DEFAULT '[]';

-- A memo points to the call whose answer, or intent, it holds; a rejected one only counts rejections.
-- Memos have one more state. They may be many and long, so none is copied: only the definition of the table changes. SQLite has
-- no statement for that, and documents this way. The rows of PostgreSQL fulfilled a stricter check, so they need not be read.
ALTER TABLE holdfast_memos ADD COLUMN call BIGINT;
ALTER TABLE holdfast_memos ADD COLUMN rejections INTEGER NOT NULL DEFAULT 0;
{on_sqlite}PRAGMA writable_schema = ON;
{on_sqlite}UPDATE sqlite_master SET sql = replace(sql, '(''intended'', ''done'')', '(''intended'', ''done'', ''rejected'')') WHERE type = 'table' AND name = 'holdfast_memos';
{on_sqlite}PRAGMA writable_schema = RESET;
{on_postgres}ALTER TABLE holdfast_memos DROP CONSTRAINT memos_state_check, ADD CONSTRAINT memos_state_check CHECK (state IN ('intended', 'done', 'rejected')) NOT VALID;
-- Counts have one more state, too. They are few: the table is created again, and its rows copied.
DROP VIEW holdfast_stage_stats;
CREATE TABLE holdfast_counts_before AS SELECT slot, stage, state, bucket, n, total_us, most_us FROM holdfast_counts;
DROP TABLE holdfast_counts;
CREATE TABLE holdfast_counts (
    slot BIGINT NOT NULL,
    stage BIGINT NOT NULL,
    state TEXT NOT NULL CHECK (state IN (
        'pending', 'retry_later', 'in_progress', 'on_hold', 'done', 'skipped', 'failed', 'exhausted', 'cancelled')),
    bucket SMALLINT NOT NULL,
    n BIGINT NOT NULL,
    total_us BIGINT NOT NULL,
    most_us BIGINT NOT NULL,
    PRIMARY KEY (slot, stage, state, bucket)
) {keyed} {hot};
INSERT INTO holdfast_counts (slot, stage, state, bucket, n, total_us, most_us)
SELECT slot, stage, state, bucket, n, total_us, most_us FROM holdfast_counts_before;
DROP TABLE holdfast_counts_before;
CREATE VIEW holdfast_stage_stats AS
SELECT s.pipeline, s.id AS stage, s.name, c.state,
       CAST(SUM(c.n) AS BIGINT) AS n, CAST(SUM(c.total_us) AS BIGINT) AS total_us, MAX(c.most_us) AS most_us
FROM holdfast_counts c JOIN holdfast_stages s ON s.id = c.stage
GROUP BY s.pipeline, s.id, s.name, c.state;

DROP VIEW holdfast_item_status;
DROP VIEW holdfast_item_stages;

-- One row per item and stage with its state, as if it were a table.
-- Leases have no index but their number. They are few, and read once, not scanned for every outcome.
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
SELECT i.pipeline, i.id, i.key, h.stage, 'on_hold', h.attempts,
       NULL, NULL, NULL, NULL, h.reason, h.since
FROM holdfast_holds h JOIN holdfast_items i ON i.id = h.item
UNION ALL
SELECT i.pipeline, i.id, i.key, o.stage, o.state, o.attempts,
       o.started_at, o.ended_at, o.ended_at - o.started_at, NULL, o.error, o.ended_at
FROM holdfast_outcomes o JOIN holdfast_items i ON i.id = o.item
WHERE NOT EXISTS (SELECT 1 FROM holdfast_waiting w WHERE w.stage = o.stage AND w.priority = i.priority AND w.item = o.item)
  AND NOT EXISTS (SELECT 1 FROM holdfast_delayed d WHERE d.item = o.item AND d.stage = o.stage)
  AND NOT EXISTS (SELECT 1 FROM holdfast_holds h WHERE h.stage = o.stage AND h.item = o.item)
  AND (o.item, o.stage) NOT IN (SELECT l.item, l.stage FROM holdfast_leases l);

-- Derived, never stored. The first condition that holds decides; stages removed from their pipeline do not count. Each table is
-- queried by its index, with a count, because PostgreSQL may read a whole table to answer EXISTS for a few items. Outcomes of
-- reopened stages need no check: open work decides first.
CREATE VIEW holdfast_item_status AS
SELECT i.pipeline, i.id AS item, i.key,
    CASE
        WHEN i.id IN (SELECT l.item FROM holdfast_leases l JOIN holdfast_stages s ON s.id = l.stage AND s.active = 1)
            THEN 'in_progress'
        WHEN (SELECT COUNT(*) FROM holdfast_stages s WHERE s.pipeline = i.pipeline AND s.active = 1
              AND (SELECT COUNT(*) FROM holdfast_waiting w
                   WHERE w.stage = s.id AND w.priority = i.priority AND w.item = i.id) > 0) > 0 THEN 'pending'
        WHEN (SELECT COUNT(*) FROM holdfast_delayed d WHERE d.item = i.id
              AND (SELECT s.active FROM holdfast_stages s WHERE s.id = d.stage) = 1) > 0 THEN 'pending'
        WHEN (SELECT COUNT(*) FROM holdfast_holds h WHERE h.item = i.id
              AND (SELECT s.active FROM holdfast_stages s WHERE s.id = h.stage) = 1) > 0 THEN 'on_hold'
        WHEN (SELECT COUNT(*) FROM holdfast_outcomes o WHERE o.item = i.id AND o.state IN ('failed', 'exhausted')
              AND (SELECT s.active FROM holdfast_stages s WHERE s.id = o.stage) = 1) > 0 THEN 'failed'
        WHEN (SELECT COUNT(*) FROM holdfast_outcomes o WHERE o.item = i.id AND o.state = 'cancelled'
              AND (SELECT s.active FROM holdfast_stages s WHERE s.id = o.stage) = 1) > 0 THEN 'cancelled'
        WHEN (SELECT COUNT(*) FROM holdfast_stages s WHERE s.pipeline = i.pipeline AND s.active = 1
              AND s.backfill_next IS NOT NULL AND i.id >= s.backfill_next AND i.id <= s.backfill_until) > 0 THEN 'pending'
        WHEN (SELECT COUNT(*) FROM holdfast_stages s WHERE s.pipeline = i.pipeline AND s.active = 1
              AND s.hold_next IS NOT NULL AND i.id >= s.hold_next AND i.id <= s.hold_until) > 0 THEN 'on_hold'
        WHEN (SELECT COUNT(*) FROM holdfast_stages s WHERE s.pipeline = i.pipeline AND s.active = 1
              AND s.after_children IS NOT NULL
              AND (SELECT COUNT(*) FROM holdfast_outcomes o WHERE o.item = i.id AND o.stage = s.id) = 0) > 0 THEN 'pending'
        ELSE 'done'
    END AS status
FROM holdfast_items i;

-- A call for several items of a batch is a row for each of them, with its share of the price: `share_of` is the first of these
-- rows, which stands for the call where calls are counted. A call for one item has none.
ALTER TABLE holdfast_calls ADD COLUMN share_of BIGINT;
CREATE INDEX ix_holdfast_calls_shares ON holdfast_calls (share_of, id) WHERE share_of IS NOT NULL;

-- An action of a person on many items is a row: what was asked for, how far it has come, and what it has done. A worker
-- continues an open one that no process has worked on for a while.
CREATE TABLE holdfast_actions (
    id {identity},
    kind TEXT NOT NULL,
    filter TEXT NOT NULL,
    -- The action that this one undoes.
    undoes BIGINT,
    who TEXT NOT NULL,
    reason TEXT NOT NULL,
    state TEXT NOT NULL CHECK (state IN ('open', 'done', 'stopped')),
    place TEXT NOT NULL,
    preview TEXT NOT NULL,
    counts TEXT NOT NULL,
    created_at BIGINT NOT NULL,
    touched_at BIGINT NOT NULL,
    ended_at BIGINT,
    error TEXT,
    -- What its caller named it: asked for twice under one name, it is done once.
    request TEXT
);
CREATE INDEX ix_holdfast_actions_open ON holdfast_actions (touched_at) WHERE state = 'open';
CREATE UNIQUE INDEX ix_holdfast_actions_request ON holdfast_actions (request) WHERE request IS NOT NULL;

-- How many passed results, without those that are being made again, each version has, by the type that they were checked
-- against: what is stale is known without reading items. Kept like counts, and adds up to their done and skipped; where it does not, a worker of the version before has written.
-- The row of stage 0 exists once everything is counted, and has the number of recounts.
CREATE TABLE holdfast_versions (
    slot BIGINT NOT NULL,
    stage BIGINT NOT NULL,
    version TEXT NOT NULL,
    -- The fingerprint of the type; empty if they were checked against none.
    type TEXT NOT NULL,
    n BIGINT NOT NULL,
    PRIMARY KEY (slot, stage, version, type)
) {keyed} {hot};
INSERT INTO holdfast_versions (slot, stage, version, type, n)
SELECT 0, 0, '', '', 1 WHERE NOT EXISTS (SELECT 1 FROM holdfast_pipelines);

-- Items whose results may be outdated: their data has changed, or a passed stage was reopened. A row is removed when a check
-- finds the item up to date.
CREATE TABLE holdfast_changed (
    pipeline BIGINT NOT NULL,
    item BIGINT NOT NULL,
    PRIMARY KEY (pipeline, item)
) {keyed};
-- Not 0: every item is still to be rechecked. The number is the generation that moved a stage.
ALTER TABLE holdfast_pipelines ADD COLUMN recheck BIGINT NOT NULL DEFAULT -1;

-- Money for those who ask in SQL: a row per paid call, with names, a date, and amounts in the unit they are counted in. What
-- is known not to be charged, or is in progress, is not a cost.
CREATE VIEW holdfast_costs AS
SELECT p.name AS pipeline, s.name AS stage, i.key AS item, c.name, c.state, NULLIF(c.resource, '') AS resource,
       NULLIF(c.model, '') AS model, {date_of_call} AS day,
       CAST(CASE WHEN c.state = 'doubtful' THEN 0 ELSE c.amount END / 1000000.0 AS NUMERIC(24, 6)) AS costs,
       CAST(CASE WHEN c.state = 'doubtful' THEN c.amount ELSE 0 END / 1000000.0 AS NUMERIC(24, 6)) AS in_doubt,
       c.tokens_in, c.tokens_out, c.tokens_cached, c.tokens_reasoning
FROM holdfast_calls c LEFT JOIN holdfast_stages s ON s.id = c.stage LEFT JOIN holdfast_pipelines p ON p.id = s.pipeline
LEFT JOIN holdfast_items i ON i.id = c.item
WHERE c.state IN ('done', 'rejected', 'doubtful');

-- Look-ups of a source that looks something up for each item: the item, the input, and when.
CREATE TABLE holdfast_lookups (
    source BIGINT NOT NULL,
    key TEXT {bytewise} NOT NULL,
    mark TEXT NOT NULL,
    at BIGINT NOT NULL,
    PRIMARY KEY (source, key)
) {keyed};

-- Error groups: failures with the same cause are counted together as they happen, by the class of the error, the place in the
-- user's code, and the message without its variable parts. Kept like counts; only the groups seen last are kept for each stage.
CREATE TABLE holdfast_error_groups (
    slot BIGINT NOT NULL,
    stage BIGINT NOT NULL,
    id TEXT NOT NULL,
    kind TEXT NOT NULL,
    place TEXT NOT NULL,
    message TEXT NOT NULL,
    n BIGINT NOT NULL,
    amount BIGINT NOT NULL,
    first_seen BIGINT NOT NULL,
    last_seen BIGINT NOT NULL,
    -- The item that failed last.
    item BIGINT NOT NULL,
    PRIMARY KEY (slot, stage, id)
) {keyed};
ALTER TABLE holdfast_delayed ADD COLUMN error_group TEXT;
ALTER TABLE holdfast_outcomes ADD COLUMN error_group TEXT;
-- Which finished stages belong to a group. An index on a large table takes as long as reading all of it. PostgreSQL builds it
-- beside the work of others; SQLite would let every writer wait, so there it is a table, which is empty at first. A row is inserted without its group, which
-- is set afterwards: so no trigger is called for what has not failed.
{later}CREATE INDEX ix_holdfast_outcomes_group ON holdfast_outcomes (error_group, item) WHERE error_group IS NOT NULL;
{on_sqlite}CREATE TABLE holdfast_grouped (error_group TEXT NOT NULL, item BIGINT NOT NULL, stage BIGINT NOT NULL, PRIMARY KEY (error_group, item, stage)) WITHOUT ROWID;
{on_sqlite}CREATE TRIGGER holdfast_regroup_outcome AFTER UPDATE OF item, stage, error_group ON holdfast_outcomes WHEN (new.error_group, new.item, new.stage) IS NOT (old.error_group, old.item, old.stage) BEGIN DELETE FROM holdfast_grouped WHERE error_group = old.error_group AND item = old.item AND stage = old.stage; INSERT INTO holdfast_grouped (error_group, item, stage) SELECT new.error_group, new.item, new.stage WHERE new.error_group IS NOT NULL ON CONFLICT DO NOTHING; END;
{on_sqlite}CREATE TRIGGER holdfast_ungroup_outcome AFTER DELETE ON holdfast_outcomes WHEN old.error_group IS NOT NULL BEGIN DELETE FROM holdfast_grouped WHERE error_group = old.error_group AND item = old.item AND stage = old.stage; END;

-- Since when it waits; 0 if a worker of the version before wrote the row.
ALTER TABLE holdfast_waiting ADD COLUMN since BIGINT NOT NULL DEFAULT 0;

-- When the work became ready to be claimed; 0 if a worker of the version before claimed it.
ALTER TABLE holdfast_leases ADD COLUMN ready_at BIGINT NOT NULL DEFAULT 0;

-- The attempts that ended in a minute, as JSON: how, how long they ran, how long they had waited. For curves over the last days.
-- A worker writes rows of its own; rows of several workers, and of several minutes, are joined under slot 0 later.
CREATE TABLE holdfast_minutes (
    minute BIGINT NOT NULL,
    stage BIGINT NOT NULL,
    slot BIGINT NOT NULL,
    counts TEXT NOT NULL,
    PRIMARY KEY (minute, stage, slot)
) {keyed};
-- The trace in which an item was added, and the types that its data and its results were checked against.
ALTER TABLE holdfast_items ADD COLUMN traceparent TEXT;
ALTER TABLE holdfast_items ADD COLUMN type TEXT;
ALTER TABLE holdfast_outcomes ADD COLUMN type TEXT;
ALTER TABLE holdfast_pipelines ADD COLUMN type TEXT;
ALTER TABLE holdfast_stages ADD COLUMN type TEXT;
-- The last result of a stage that was replaced, where the stage keeps it.
ALTER TABLE holdfast_stages ADD COLUMN keep_previous SMALLINT NOT NULL DEFAULT 0;
ALTER TABLE holdfast_outcomes ADD COLUMN previous TEXT;
ALTER TABLE holdfast_outcomes ADD COLUMN previous_version TEXT;
ALTER TABLE holdfast_outcomes ADD COLUMN previous_ended_at BIGINT;

-- Results for those who ask in SQL: a row per finished stage of an item, with names and times. One that is being made again stays
-- until the new one replaces it. A key is looked up in each pipeline: SQLite keeps the order of CROSS JOIN.
CREATE VIEW holdfast_results AS
SELECT p.name AS pipeline, i.key, s.name AS stage, o.state, o.attempts, o.version,
       CAST(o.cost / 1000000.0 AS NUMERIC(24, 6)) AS cost,
       {instant o.started_at} AS started_at, {instant o.ended_at} AS finished_at, o.error, i.data, o.result
FROM holdfast_pipelines p CROSS JOIN holdfast_items i CROSS JOIN holdfast_outcomes o JOIN holdfast_stages s ON s.id = o.stage
WHERE i.pipeline = p.id AND o.item = i.id;

-- The rows of item_stages for those who ask in SQL, with names and times: each stage of each item is looked up in the tables of
-- the open states and, if it is in none of them, in the outcomes. This is no union, and compares no pairs: DuckDB parses the views
-- of a SQLite file and gives SQLite a text of its own, which puts the parts of a union, and pairs, in a way that SQLite refuses.
CREATE VIEW holdfast_item_stages_by_name AS
SELECT p.name AS pipeline, i.key, s.name AS stage,
       CASE WHEN l.item IS NOT NULL THEN 'in_progress' WHEN w.item IS NOT NULL THEN 'pending'
            WHEN d.item IS NOT NULL THEN 'retry_later' WHEN h.item IS NOT NULL THEN 'on_hold' ELSE o.state END AS state,
       COALESCE(l.attempt, w.attempts, d.attempts, h.attempts, o.attempts) AS attempts,
       {instant COALESCE(l.since, o.started_at)} AS started_at, {instant o.ended_at} AS finished_at,
       {instant d.due_at} AS next_attempt_at, COALESCE(d.error, h.reason, o.error) AS error
FROM holdfast_pipelines p CROSS JOIN holdfast_items i CROSS JOIN holdfast_stages s
LEFT JOIN holdfast_leases l ON l.item = i.id AND l.stage = s.id
LEFT JOIN holdfast_waiting w ON w.stage = s.id AND w.priority = i.priority AND w.item = i.id
LEFT JOIN holdfast_delayed d ON d.item = i.id AND d.stage = s.id
LEFT JOIN holdfast_holds h ON h.stage = s.id AND h.item = i.id
LEFT JOIN holdfast_outcomes o ON o.item = i.id AND o.stage = s.id AND COALESCE(l.item, w.item, d.item, h.item) IS NULL
WHERE i.pipeline = p.id AND s.pipeline = p.id AND COALESCE(l.item, w.item, d.item, h.item, o.item) IS NOT NULL;

-- The name of a pipeline whose program has the rule, whether it still has it, until when it tells nobody again, and the rule in words,
-- without addresses.
ALTER TABLE holdfast_alerts ADD COLUMN owner TEXT;
ALTER TABLE holdfast_alerts ADD COLUMN active SMALLINT NOT NULL DEFAULT 1;
ALTER TABLE holdfast_alerts ADD COLUMN quiet_until BIGINT NOT NULL DEFAULT 0;
ALTER TABLE holdfast_alerts ADD COLUMN says TEXT;

-- What needs a worker, and from when on, for those who start and stop workers by need: how many, and the time in microseconds;
-- NULL if it waits for a person. From counts and indexes alone: SQLite finds a minimum by an index only where it stands alone.
-- Work that a limit or a guard holds back is in it: a worker has to see when that ends. Of events, those that workers leave when
-- they come and go are no reason to start one.
CREATE VIEW holdfast_demand AS
SELECT CASE c.state WHEN 'pending' THEN 'waiting' ELSE 'running' END AS need, p.name AS pipeline, s.name AS stage, c.n,
       CASE WHEN c.state = 'in_progress' THEN 0
            WHEN (p.paused = 1 AND p.retry_after IS NULL) OR (s.paused = 1 AND s.retry_after IS NULL) THEN NULL
            WHEN p.paused = 1 AND s.paused = 1 AND s.retry_after > p.retry_after THEN s.retry_after
            WHEN p.paused = 1 THEN p.retry_after
            WHEN s.paused = 1 THEN s.retry_after
            ELSE 0 END AS due_at
FROM (SELECT x.stage, x.state, CAST(SUM(x.n) AS BIGINT) AS n FROM holdfast_counts x
      WHERE x.state IN ('pending', 'in_progress') GROUP BY x.stage, x.state) AS c
JOIN holdfast_stages s ON s.id = c.stage JOIN holdfast_pipelines p ON p.id = s.pipeline
WHERE c.n > 0 AND (s.active = 1 OR c.state = 'in_progress')
UNION ALL SELECT 'retry', NULL, NULL, 1, (SELECT MIN(d.due_at) FROM holdfast_delayed d)
UNION ALL SELECT 'backfill', p.name, s.name, 1, 0 FROM holdfast_stages s JOIN holdfast_pipelines p ON p.id = s.pipeline
WHERE s.active = 1 AND (s.backfill_next IS NOT NULL OR s.hold_next IS NOT NULL)
UNION ALL SELECT 'version', p.name, s.name, 1, 0 FROM holdfast_stages s JOIN holdfast_pipelines p ON p.id = s.pipeline
WHERE s.active = 1 AND EXISTS (SELECT 1 FROM holdfast_holds h WHERE h.stage = s.id AND h.kind = 'version')
UNION ALL SELECT 'source', p.name, NULL, 1, x.due_at FROM holdfast_sources x JOIN holdfast_pipelines p ON p.id = x.pipeline
WHERE x.active = 1
UNION ALL SELECT 'delivery', NULL, NULL, 1, (SELECT MIN(d.due_at) FROM holdfast_deliveries d
    WHERE d.alert NOT IN (SELECT a.name FROM holdfast_alerts a WHERE a.active = 0))
UNION ALL SELECT 'action', NULL, NULL, 1, (SELECT MIN(a.touched_at) FROM holdfast_actions a WHERE a.state = 'open')
UNION ALL SELECT 'alert', NULL, NULL, 1, MIN(CASE WHEN x.at > x.quiet_until THEN x.at ELSE x.quiet_until END) FROM (
    SELECT a.quiet_until, (SELECT MIN(e.at) FROM (
        SELECT y.at, y.event FROM holdfast_events y WHERE y.id > a.looked_until ORDER BY y.id LIMIT 1000) AS e
        WHERE e.event NOT IN ('worker_started', 'worker_stopped', 'alert_told', 'alert_given_up')) AS at
    FROM holdfast_alerts a WHERE a.active = 1) AS x WHERE x.at IS NOT NULL;

-- Changes of a finished stage that no lease tells of, with the newest lease of that moment; stage 0 for a change of the item's
-- data. An export that goes on from an earlier one reads it. On PostgreSQL each row names its transaction, so nothing is kept.
{on_sqlite}CREATE TABLE holdfast_amended (item BIGINT NOT NULL, stage BIGINT NOT NULL, lease BIGINT NOT NULL, PRIMARY KEY (item, stage)) WITHOUT ROWID;
{on_sqlite}CREATE TRIGGER holdfast_amend_outcome AFTER UPDATE OF stage, state, attempts, lease, version, cost, error, result ON holdfast_outcomes WHEN new.lease IS NULL OR new.lease = old.lease BEGIN INSERT INTO holdfast_amended (item, stage, lease) VALUES (new.item, new.stage, COALESCE((SELECT seq FROM sqlite_sequence WHERE name = 'holdfast_leases'), 0)) ON CONFLICT (item, stage) DO UPDATE SET lease = excluded.lease; END;
{on_sqlite}CREATE TRIGGER holdfast_amend_item AFTER UPDATE OF data ON holdfast_items BEGIN INSERT INTO holdfast_amended (item, stage, lease) VALUES (new.id, 0, COALESCE((SELECT seq FROM sqlite_sequence WHERE name = 'holdfast_leases'), 0)) ON CONFLICT (item, stage) DO UPDATE SET lease = excluded.lease; END;
{on_sqlite}CREATE TRIGGER holdfast_forget_amended AFTER DELETE ON holdfast_items BEGIN DELETE FROM holdfast_amended WHERE item = old.id; END;

-- SQLite keeps any value in any column, unless a table is strict: a text that somebody else writes into a column for numbers would
-- break questions later, so it is refused at once, as PostgreSQL does. No row is read. The types that strict tables know are other
-- names for the same, and INTEGER would make a primary key another thing.
{on_sqlite}PRAGMA writable_schema = ON;
{on_sqlite}UPDATE sqlite_master SET sql = replace(replace(sql, 'SMALLINT', 'INT'), 'BIGINT', 'INT') || CASE WHEN sql LIKE '%WITHOUT ROWID%' THEN ', STRICT' ELSE ' STRICT' END WHERE type = 'table' AND name IN ('holdfast_actions', 'holdfast_alerts', 'holdfast_amended', 'holdfast_buckets', 'holdfast_calls', 'holdfast_chains', 'holdfast_changed', 'holdfast_children', 'holdfast_clock', 'holdfast_commits', 'holdfast_counts', 'holdfast_delayed', 'holdfast_deliveries', 'holdfast_error_groups', 'holdfast_events', 'holdfast_found', 'holdfast_grouped', 'holdfast_holds', 'holdfast_items', 'holdfast_leases', 'holdfast_lookups', 'holdfast_memos', 'holdfast_minutes', 'holdfast_money', 'holdfast_outcomes', 'holdfast_pipelines', 'holdfast_reservations', 'holdfast_resources', 'holdfast_schema_version', 'holdfast_sources', 'holdfast_spent', 'holdfast_stages', 'holdfast_versions', 'holdfast_waiting', 'holdfast_workers');
{on_sqlite}PRAGMA writable_schema = RESET;
