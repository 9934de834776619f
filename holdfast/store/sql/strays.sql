-- Rows that something other than holdfast must have written: without an item or a stage, or with text that is not JSON.

-- name: stray_rows
-- Also rows that would end a stage for a second time, although they are no rerun. The last column: whether the item is there.
SELECT x.place, x.stage, x.item, CASE WHEN EXISTS (SELECT 1 FROM holdfast_items i WHERE i.id = x.item) THEN 1 ELSE 0 END AS is_there
FROM (
    SELECT 'waiting' AS place, stage, item, rerun FROM holdfast_waiting UNION ALL
    SELECT 'delayed', stage, item, rerun FROM holdfast_delayed UNION ALL
    SELECT 'holds', stage, item, rerun FROM holdfast_holds UNION ALL
    SELECT 'leases', stage, item, rerun FROM holdfast_leases UNION ALL
    SELECT 'outcomes', stage, item, 1 FROM holdfast_outcomes UNION ALL
    SELECT 'memos', stage, item, 1 FROM holdfast_memos) AS x
WHERE NOT EXISTS (SELECT 1 FROM holdfast_items i WHERE i.id = x.item)
   OR NOT EXISTS (SELECT 1 FROM holdfast_stages s WHERE s.id = x.stage)
   OR (x.rerun = 0 AND EXISTS (SELECT 1 FROM holdfast_outcomes o WHERE o.item = x.item AND o.stage = x.stage))
LIMIT :most;

-- name: ended_among
SELECT item, stage FROM holdfast_outcomes WHERE item {in items} AND stage {in stages};

-- name: items_of_no_pipeline
SELECT i.id, i.pipeline FROM holdfast_items i WHERE NOT EXISTS (SELECT 1 FROM holdfast_pipelines p WHERE p.id = i.pipeline)
ORDER BY i.id LIMIT :most;

-- name: take_from_waiting
DELETE FROM holdfast_waiting WHERE stage = :stage AND item = :item RETURNING stage, item, attempts, alone, rerun;

-- name: take_from_delayed
DELETE FROM holdfast_delayed WHERE stage = :stage AND item = :item RETURNING stage, item, attempts, alone, rerun;

-- name: take_from_holds
DELETE FROM holdfast_holds WHERE stage = :stage AND item = :item RETURNING stage, item, attempts, alone, rerun;

-- name: take_from_leases
DELETE FROM holdfast_leases WHERE stage = :stage AND item = :item RETURNING stage, item, attempt, alone, rerun;

-- name: take_from_outcomes
DELETE FROM holdfast_outcomes WHERE stage = :stage AND item = :item RETURNING stage, item, attempts, state, result;

-- name: take_from_memos
DELETE FROM holdfast_memos WHERE stage = :stage AND item = :item RETURNING stage, item, name, state, value;

-- name: last_numbers
SELECT (SELECT MAX(id) FROM holdfast_items), (SELECT MAX(id) FROM holdfast_calls), (SELECT MAX(id) FROM holdfast_events);

-- name: texts_of_items
SELECT id, data FROM holdfast_items WHERE id > :after ORDER BY id LIMIT :most;

-- name: numbers_of_items
-- The item up to which the next so many go; in the same way for calls and events.
SELECT MAX(x.id) FROM (SELECT id FROM holdfast_items WHERE id > :after ORDER BY id LIMIT :most) AS x;

-- name: numbers_of_calls
SELECT MAX(x.id) FROM (SELECT id FROM holdfast_calls WHERE id > :after ORDER BY id LIMIT :most) AS x;

-- name: numbers_of_events
SELECT MAX(x.id) FROM (SELECT id FROM holdfast_events WHERE id > :after ORDER BY id LIMIT :most) AS x;

-- name: numbers_of_outcomes
-- The item up to which the next so many outcomes go: an item has one for each of its stages.
SELECT MAX(x.item) FROM (SELECT item FROM holdfast_outcomes WHERE item > :after ORDER BY item LIMIT :most) AS x;

-- name: texts_of_outcomes
SELECT item, result FROM holdfast_outcomes WHERE item > :after AND item <= :until AND result IS NOT NULL;

-- name: texts_of_calls
SELECT id, facts, value FROM holdfast_calls WHERE id > :after ORDER BY id LIMIT :most;

-- name: texts_of_events
SELECT id, data FROM holdfast_events WHERE id > :after ORDER BY id LIMIT :most;

-- name: texts_of_memos
-- In the order of its only index.
SELECT item, value, stage, name FROM holdfast_memos WHERE (stage, item, name) > (:stage, :item, :name)
ORDER BY stage, item, name LIMIT :most;

-- name: texts_of_workers
SELECT id, stages, versions, facts FROM holdfast_workers;

-- name: texts_of_stages
SELECT id, after, compatible, resources, formerly FROM holdfast_stages;

-- name: texts_of_pipelines
SELECT id, guards, tuned, provenance FROM holdfast_pipelines;

-- name: texts_of_resources
SELECT id, spec, tuned FROM holdfast_resources;

-- name: texts_of_minutes
SELECT minute, counts FROM holdfast_minutes;

-- name: texts_of_actions
SELECT id, filter, place, preview, counts FROM holdfast_actions;
