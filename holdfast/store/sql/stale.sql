-- Inputs and versions of results, for plan, reprocess and accept.

-- name: items_with_data
-- In the order of numbers: the sum rules out the index of keys, by which each chunk would read the whole pipeline.
SELECT id, key, data FROM holdfast_items WHERE pipeline + 0 = :pipeline AND id > :after
  AND (CAST(:key AS TEXT) IS NULL OR key {glob} :key) ORDER BY id LIMIT :most;

-- name: changed_with_data
SELECT i.id, i.key, i.data FROM holdfast_changed c CROSS JOIN holdfast_items i
WHERE c.pipeline = :pipeline AND c.item > :after AND i.id = c.item
  AND (CAST(:key AS TEXT) IS NULL OR i.key {glob} :key) ORDER BY c.item LIMIT :most;

-- name: items_by_number
SELECT id, key, data FROM holdfast_items WHERE id {in items} ORDER BY id;

-- name: outcomes_of
SELECT item, stage, state, version, input_hash, output_hash, cost, ended_at - started_at, type FROM holdfast_outcomes
WHERE item {in items} AND stage {in stages};

-- name: results_of
SELECT item, result FROM holdfast_outcomes WHERE stage = :stage AND item {in items};

-- name: open_stages_of
SELECT w.item, w.stage FROM holdfast_items i CROSS JOIN holdfast_waiting w
WHERE i.id {in items} AND w.stage {in stages} AND w.priority = i.priority AND w.item = i.id
UNION ALL SELECT d.item, d.stage FROM holdfast_delayed d WHERE d.item {in items}
UNION ALL SELECT h.item, h.stage FROM holdfast_holds h WHERE h.item {in items}
UNION ALL SELECT l.item, l.stage FROM holdfast_leases l WHERE l.item {in items};

-- name: sample_of_items
-- A sample of the items of a pipeline, at a fixed cost: the first and the last by key.
SELECT id FROM (SELECT id FROM holdfast_items WHERE pipeline = :pipeline ORDER BY key LIMIT :most) AS x
UNION SELECT id FROM (SELECT id FROM holdfast_items WHERE pipeline = :pipeline ORDER BY key DESC LIMIT :most) AS y;

-- name: accept_results
UPDATE holdfast_outcomes SET version = :version, input_hash = r.input_hash
FROM {rows item bigint, input_hash text}
WHERE holdfast_outcomes.stage = :stage AND holdfast_outcomes.item = r.item AND state IN ('done', 'skipped')
RETURNING holdfast_outcomes.item, state;

-- name: set_inputs
UPDATE holdfast_outcomes SET input_hash = r.today FROM {rows item bigint, stage bigint, before text, today text}
WHERE holdfast_outcomes.item = r.item AND holdfast_outcomes.stage = r.stage AND holdfast_outcomes.input_hash = r.before;

-- name: read_versions
SELECT stage, version, type, {sum n} FROM holdfast_versions GROUP BY stage, version, type;

-- name: enter_changed
-- Even if it is listed already: a transaction that is about to remove the entry has not seen this change.
INSERT INTO holdfast_changed (pipeline, item)
{values pipeline bigint, item bigint}
ON CONFLICT (pipeline, item) DO UPDATE SET item = excluded.item;

-- name: hold_changed
SELECT pipeline, item FROM holdfast_changed WHERE (pipeline, item) > (:pipeline, :item)
ORDER BY pipeline, item LIMIT :most {for_update};

-- name: clear_changed
DELETE FROM holdfast_changed WHERE pipeline = :pipeline AND item {in items};

-- name: changed_among
SELECT item FROM holdfast_changed WHERE pipeline = :pipeline AND item {in items};

-- name: read_rechecks
SELECT id, recheck FROM holdfast_pipelines ORDER BY id;

-- name: pipelines_to_recheck
-- None while counts of versions are incomplete: a worker of the version before may be running, which lists nothing.
SELECT id, recheck FROM holdfast_pipelines
WHERE recheck <> 0 AND EXISTS (SELECT 1 FROM holdfast_versions WHERE slot = 0 AND stage = 0) ORDER BY id;

-- name: begin_recheck
UPDATE holdfast_pipelines SET recheck = :generation WHERE id = :pipeline;

-- name: end_recheck
UPDATE holdfast_pipelines SET recheck = 0 WHERE id = :pipeline AND recheck = :recheck;

-- name: versions_by_row
-- For `db check`: the results of each version, counted from the rows.
SELECT o.stage, COALESCE(o.version, ''), COALESCE(o.type, ''), COUNT(*) FROM holdfast_item_stages x
JOIN holdfast_outcomes o ON o.item = x.item AND o.stage = x.stage
WHERE x.state IN ('done', 'skipped') GROUP BY o.stage, COALESCE(o.version, ''), COALESCE(o.type, '');

-- name: count_versions_anew
-- No row: another process has recounted since.
INSERT INTO holdfast_versions (slot, stage, version, type, n) VALUES (0, 0, '', '', 1)
ON CONFLICT (slot, stage, version, type) DO UPDATE SET n = holdfast_versions.n + 1 WHERE holdfast_versions.n = :times
RETURNING n;
