-- Questions of the command line and the dashboard. None costs more as the work that is done grows.

-- name: read_counts
SELECT stage, state, bucket, CAST(SUM(n) AS BIGINT), CAST(SUM(total_us) AS BIGINT), MAX(most_us)
FROM holdfast_counts GROUP BY stage, state, bucket;

-- name: item_stages
SELECT x.stage, x.state, x.attempts, x.started_at, x.ended_at, x.elapsed_us, x.next_attempt_at, x.error, x.updated_at
FROM holdfast_item_stages x WHERE x.item = :item;

-- name: item_outcomes
SELECT stage, state, attempts, started_at, ended_at, version, error, result FROM holdfast_outcomes WHERE item = :item;

-- name: item_lease
SELECT l.id, l.stage, l.worker, l.attempt, l.alone, l.since, w.name, w.process, w.beat_at, w.alive_until, w.clock, w.facts
FROM holdfast_leases l LEFT JOIN holdfast_workers w ON w.id = l.worker WHERE l.item = :item;

-- name: item_status
SELECT status FROM holdfast_item_status WHERE item = :item;

-- name: ahead_of
-- How many are before an item in its stage's queue; counted no further than :most.
SELECT COUNT(*) FROM (SELECT 1 FROM holdfast_waiting w WHERE w.stage = :stage
    AND (w.priority < :priority OR (w.priority = :priority AND w.item < :item)) LIMIT :most) AS ahead;

-- name: list_items
SELECT i.id, p.name AS pipeline, i.key, x.status, i.created_at, i.updated_at
FROM holdfast_items i JOIN holdfast_pipelines p ON p.id = i.pipeline JOIN holdfast_item_status x ON x.item = i.id
WHERE i.id > :after AND (CAST(:pipeline AS TEXT) IS NULL OR p.name = :pipeline)
  AND (CAST(:key AS TEXT) IS NULL OR i.key {glob} :key)
ORDER BY i.id LIMIT :most;

-- name: list_open
SELECT x.item AS id, x.key, x.stage, x.state, x.attempts, x.next_attempt_at, x.error, x.updated_at
FROM holdfast_item_stages x WHERE x.stage {in stages} AND x.state = :state AND x.item > :after
  AND (CAST(:key AS TEXT) IS NULL OR x.key {glob} :key) AND (CAST(:error AS TEXT) IS NULL OR {position}(x.error, :error) > 0)
ORDER BY x.item LIMIT :most;

-- name: read_items_named
SELECT id, key FROM holdfast_items WHERE id {in items};

-- name: rows_by_state
-- For `db check`: the counts, counted again the slow way.
SELECT stage, state, COUNT(*) FROM holdfast_item_stages GROUP BY stage, state;

-- name: open_more_than_once
-- For `db check`: a stage of an item must lie in one place only.
SELECT x.item, x.stage, COUNT(*) FROM (
    SELECT item, stage FROM holdfast_waiting UNION ALL
    SELECT item, stage FROM holdfast_delayed UNION ALL
    SELECT item, stage FROM holdfast_leases) AS x
GROUP BY x.item, x.stage HAVING COUNT(*) > 1 LIMIT 100;

-- name: rows_without_items
SELECT x.item, x.stage FROM (
    SELECT item, stage FROM holdfast_waiting UNION ALL SELECT item, stage FROM holdfast_delayed UNION ALL
    SELECT item, stage FROM holdfast_leases UNION ALL SELECT item, stage FROM holdfast_outcomes) AS x
WHERE NOT EXISTS (SELECT 1 FROM holdfast_items i WHERE i.id = x.item) LIMIT 100;
