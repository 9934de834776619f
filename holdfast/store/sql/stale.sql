-- What was made from what: for plan, reprocess and accept.

-- name: items_with_data
-- In the order of their numbers: by the index of keys, which the sum keeps out, each stretch would read the whole pipeline.
SELECT id, key, data FROM holdfast_items WHERE pipeline + 0 = :pipeline AND id > :after
  AND (CAST(:key AS TEXT) IS NULL OR key {glob} :key) ORDER BY id LIMIT :most;

-- name: items_by_number
SELECT id, key, data FROM holdfast_items WHERE id {in items} ORDER BY id;

-- name: outcomes_of
SELECT item, stage, state, version, input_hash, output_hash, cost, ended_at - started_at FROM holdfast_outcomes
WHERE item {in items} AND stage {in stages};

-- name: open_stages_of
SELECT w.item, w.stage FROM holdfast_items i CROSS JOIN holdfast_waiting w
WHERE i.id {in items} AND w.stage {in stages} AND w.priority = i.priority AND w.item = i.id
UNION ALL SELECT d.item, d.stage FROM holdfast_delayed d WHERE d.item {in items}
UNION ALL SELECT h.item, h.stage FROM holdfast_holds h WHERE h.item {in items}
UNION ALL SELECT l.item, l.stage FROM holdfast_leases l WHERE l.item {in items};

-- name: stage_history
-- What a stage has cost and how long it took, over all its outcomes; squares for the spread.
SELECT COUNT(*), CAST(COALESCE(SUM(cost), 0) AS BIGINT),
       CAST(COALESCE(AVG(CAST(cost AS DOUBLE PRECISION) * cost), 0) AS DOUBLE PRECISION),
       CAST(COALESCE(AVG(ended_at - started_at), 0) AS DOUBLE PRECISION)
FROM holdfast_outcomes WHERE stage = :stage AND state IN ('done', 'skipped');

-- name: accept_versions
UPDATE holdfast_outcomes SET version = :version
WHERE stage = :stage AND item {in items} AND state IN ('done', 'skipped') AND version <> :version RETURNING item;
