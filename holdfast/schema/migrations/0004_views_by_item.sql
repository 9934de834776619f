-- The same views, asked by item: what one item costs to read no longer depends on how many there are.

DROP VIEW holdfast_item_status;
DROP VIEW holdfast_item_stages;

-- One row per item and stage with its state, as if it were a table.
-- Leases have no index but their number. They are few, and gathered once, not looked through for every outcome.
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
  AND (o.item, o.stage) NOT IN (SELECT l.item, l.stage FROM holdfast_leases l);

-- Derived, never stored. The first line that holds decides; a stage that its pipeline no longer has does not count. Each
-- table is asked by what it is ordered by; counted, because PostgreSQL may gather a whole table to answer EXISTS for a few
-- items. An outcome whose stage is open again needs no look: something open decides before.
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
        WHEN (SELECT COUNT(*) FROM holdfast_outcomes o WHERE o.item = i.id AND o.state IN ('failed', 'exhausted')
              AND (SELECT s.active FROM holdfast_stages s WHERE s.id = o.stage) = 1) > 0 THEN 'failed'
        WHEN (SELECT COUNT(*) FROM holdfast_outcomes o WHERE o.item = i.id AND o.state = 'cancelled'
              AND (SELECT s.active FROM holdfast_stages s WHERE s.id = o.stage) = 1) > 0 THEN 'cancelled'
        WHEN (SELECT COUNT(*) FROM holdfast_stages s WHERE s.pipeline = i.pipeline AND s.active = 1
              AND s.backfill_next IS NOT NULL AND i.id >= s.backfill_next AND i.id <= s.backfill_until) > 0 THEN 'pending'
        WHEN (SELECT COUNT(*) FROM holdfast_stages s WHERE s.pipeline = i.pipeline AND s.active = 1
              AND s.after_children IS NOT NULL
              AND (SELECT COUNT(*) FROM holdfast_outcomes o WHERE o.item = i.id AND o.stage = s.id) = 0) > 0 THEN 'pending'
        ELSE 'done'
    END AS status
FROM holdfast_items i;
