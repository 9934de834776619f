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

-- name: rows_of_nothing
-- Rows of tables that no worker needs to go on: each belongs to something that does not exist.
SELECT x.place, x.number, x.what, x.target FROM (
    SELECT 'items' AS place, x.id AS number, 'pipeline' AS what, CAST(x.pipeline AS TEXT) AS target FROM holdfast_items x
    WHERE NOT EXISTS (SELECT 1 FROM holdfast_pipelines p WHERE p.id = x.pipeline) UNION ALL
    SELECT 'sources', x.id, 'pipeline', CAST(x.pipeline AS TEXT) FROM holdfast_sources x
    WHERE NOT EXISTS (SELECT 1 FROM holdfast_pipelines p WHERE p.id = x.pipeline) UNION ALL
    SELECT 'children', x.child, 'item', CAST(x.child AS TEXT) FROM holdfast_children x
    WHERE NOT EXISTS (SELECT 1 FROM holdfast_items i WHERE i.id = x.child) UNION ALL
    SELECT 'children', x.child, 'item', CAST(x.parent AS TEXT) FROM holdfast_children x
    WHERE NOT EXISTS (SELECT 1 FROM holdfast_items i WHERE i.id = x.parent) UNION ALL
    SELECT 'chains', x.item, 'item', CAST(x.item AS TEXT) FROM holdfast_chains x
    WHERE NOT EXISTS (SELECT 1 FROM holdfast_items i WHERE i.id = x.item) UNION ALL
    SELECT 'deliveries', x.id, 'alert', CAST(x.alert AS TEXT) FROM holdfast_deliveries x
    WHERE NOT EXISTS (SELECT 1 FROM holdfast_alerts a WHERE a.name = x.alert) UNION ALL
    SELECT 'reservations', x.lease, 'resource', CAST(x.resource AS TEXT) FROM holdfast_reservations x
    WHERE NOT EXISTS (SELECT 1 FROM holdfast_resources r WHERE r.id = x.resource) UNION ALL
    SELECT DISTINCT 'found', x.source, 'source', CAST(x.source AS TEXT) FROM holdfast_found x
    WHERE NOT EXISTS (SELECT 1 FROM holdfast_sources s WHERE s.id = x.source) UNION ALL
    SELECT DISTINCT 'lookups', x.source, 'source', CAST(x.source AS TEXT) FROM holdfast_lookups x
    WHERE NOT EXISTS (SELECT 1 FROM holdfast_sources s WHERE s.id = x.source) UNION ALL
    SELECT DISTINCT 'error_groups', x.stage, 'stage', CAST(x.stage AS TEXT) FROM holdfast_error_groups x
    WHERE NOT EXISTS (SELECT 1 FROM holdfast_stages s WHERE s.id = x.stage)) AS x LIMIT :most;

-- name: take_lost_children
DELETE FROM holdfast_children WHERE (parent, child) IN (
    SELECT c.parent, c.child FROM holdfast_children c WHERE NOT EXISTS (SELECT 1 FROM holdfast_items i WHERE i.id = c.child)
       OR NOT EXISTS (SELECT 1 FROM holdfast_items i WHERE i.id = c.parent) LIMIT :most) RETURNING child, parent;

-- name: take_lost_chains
DELETE FROM holdfast_chains WHERE item IN (
    SELECT c.item FROM holdfast_chains c WHERE NOT EXISTS (SELECT 1 FROM holdfast_items i WHERE i.id = c.item) LIMIT :most)
RETURNING item, led_by;

-- name: take_lost_deliveries
DELETE FROM holdfast_deliveries WHERE id IN (
    SELECT d.id FROM holdfast_deliveries d WHERE NOT EXISTS (SELECT 1 FROM holdfast_alerts a WHERE a.name = d.alert) LIMIT :most)
RETURNING id, alert, body;

-- name: impossible_numbers
-- Counts that nothing can have reached, reasons to run again that nobody has, and times that no calendar knows. Those of
-- buckets are in nanoseconds.
SELECT x.place, x.number, x.what, x.value FROM (
    SELECT 'waiting' AS place, CAST(item AS TEXT) AS number, 'attempts' AS what, attempts AS value FROM holdfast_waiting
    WHERE attempts NOT BETWEEN 0 AND :most_often UNION ALL
    SELECT 'waiting', CAST(item AS TEXT), 'alone', alone FROM holdfast_waiting
    WHERE alone NOT BETWEEN 0 AND :most_alone UNION ALL
    SELECT 'waiting', CAST(item AS TEXT), 'rerun', rerun FROM holdfast_waiting
    WHERE rerun NOT BETWEEN 0 AND 2 UNION ALL
    SELECT 'delayed', CAST(item AS TEXT), 'attempts', attempts FROM holdfast_delayed
    WHERE attempts NOT BETWEEN 0 AND :most_often UNION ALL
    SELECT 'delayed', CAST(item AS TEXT), 'alone', alone FROM holdfast_delayed
    WHERE alone NOT BETWEEN 0 AND :most_alone UNION ALL
    SELECT 'delayed', CAST(item AS TEXT), 'rerun', rerun FROM holdfast_delayed
    WHERE rerun NOT BETWEEN 0 AND 2 UNION ALL
    SELECT 'holds', CAST(item AS TEXT), 'attempts', attempts FROM holdfast_holds
    WHERE attempts NOT BETWEEN 0 AND :most_often UNION ALL
    SELECT 'holds', CAST(item AS TEXT), 'alone', alone FROM holdfast_holds
    WHERE alone NOT BETWEEN 0 AND :most_alone UNION ALL
    SELECT 'holds', CAST(item AS TEXT), 'rerun', rerun FROM holdfast_holds
    WHERE rerun NOT BETWEEN 0 AND 2 UNION ALL
    SELECT 'leases', CAST(id AS TEXT), 'attempt', attempt FROM holdfast_leases
    WHERE attempt NOT BETWEEN 0 AND :most_often UNION ALL
    SELECT 'leases', CAST(id AS TEXT), 'alone', alone FROM holdfast_leases
    WHERE alone NOT BETWEEN 0 AND :most_alone UNION ALL
    SELECT 'leases', CAST(id AS TEXT), 'rerun', rerun FROM holdfast_leases
    WHERE rerun NOT BETWEEN 0 AND 2 UNION ALL
    SELECT 'outcomes', CAST(item AS TEXT), 'attempts', attempts FROM holdfast_outcomes
    WHERE attempts NOT BETWEEN 0 AND :most_often UNION ALL
    SELECT 'waiting', CAST(item AS TEXT), 'since', since FROM holdfast_waiting
    WHERE since NOT BETWEEN 0 AND :last UNION ALL
    SELECT 'delayed', CAST(item AS TEXT), 'due_at', due_at FROM holdfast_delayed
    WHERE due_at NOT BETWEEN 0 AND :last UNION ALL
    SELECT 'holds', CAST(item AS TEXT), 'since', since FROM holdfast_holds
    WHERE since NOT BETWEEN 0 AND :last UNION ALL
    SELECT 'leases', CAST(id AS TEXT), 'since', since FROM holdfast_leases
    WHERE since NOT BETWEEN 0 AND :last UNION ALL
    SELECT 'outcomes', CAST(item AS TEXT), 'ended_at', ended_at FROM holdfast_outcomes
    WHERE ended_at NOT BETWEEN 0 AND :last UNION ALL
    SELECT 'events', CAST(id AS TEXT), 'at', at FROM holdfast_events
    WHERE at NOT BETWEEN 0 AND :last UNION ALL
    SELECT 'calls', CAST(id AS TEXT), 'at', at FROM holdfast_calls
    WHERE at NOT BETWEEN 0 AND :last UNION ALL
    SELECT 'deliveries', CAST(id AS TEXT), 'due_at', due_at FROM holdfast_deliveries
    WHERE due_at NOT BETWEEN 0 AND :last UNION ALL
    SELECT 'alerts', CAST(name AS TEXT), 'told_at', told_at FROM holdfast_alerts
    WHERE told_at NOT BETWEEN 0 AND :last UNION ALL
    SELECT 'sources', CAST(id AS TEXT), 'looked_at', looked_at FROM holdfast_sources
    WHERE looked_at NOT BETWEEN 0 AND :last UNION ALL
    SELECT 'deliveries', CAST(id AS TEXT), 'attempts', attempts FROM holdfast_deliveries
    WHERE attempts NOT BETWEEN 0 AND :most_often UNION ALL
    SELECT 'sources', CAST(id AS TEXT), 'failures', failures FROM holdfast_sources
    WHERE failures NOT BETWEEN 0 AND :most_often UNION ALL
    SELECT 'sources', CAST(id AS TEXT), 'run', run FROM holdfast_sources
    WHERE run NOT BETWEEN 0 AND :most_often UNION ALL
    SELECT 'alerts', CAST(name AS TEXT), 'looked_until', looked_until FROM holdfast_alerts
    WHERE looked_until NOT BETWEEN 0 AND :last UNION ALL
    SELECT 'pipelines', CAST(id AS TEXT), 'generation', generation FROM holdfast_pipelines
    WHERE generation NOT BETWEEN 0 AND 1000000000000000 UNION ALL
    SELECT 'pipelines', CAST(id AS TEXT), 'retry_after', retry_after FROM holdfast_pipelines
    WHERE retry_after NOT BETWEEN 0 AND :last UNION ALL
    SELECT 'stages', CAST(id AS TEXT), 'retry_after', retry_after FROM holdfast_stages
    WHERE retry_after NOT BETWEEN 0 AND :last UNION ALL
    SELECT 'resources', CAST(id AS TEXT), 'paced_at', paced_at FROM holdfast_resources
    -- Workers of 0.1.0 shift the zero of a resource that was never paced, if the clock is set.
    WHERE paced_at NOT BETWEEN -4503599627370496 AND :last UNION ALL
    SELECT 'resources', CAST(id AS TEXT), 'cool_until', cool_until FROM holdfast_resources
    WHERE cool_until NOT BETWEEN 0 AND :last UNION ALL
    SELECT 'resources', CAST(id AS TEXT), 'open_until', open_until FROM holdfast_resources
    WHERE open_until NOT BETWEEN 0 AND :last UNION ALL
    SELECT 'resources', CAST(id AS TEXT), 'retry_after', retry_after FROM holdfast_resources
    WHERE retry_after NOT BETWEEN 0 AND :last UNION ALL
    SELECT 'buckets', CAST(resource AS TEXT), 'used_until', used_until FROM holdfast_buckets
    WHERE used_until NOT BETWEEN 0 AND 4611686018427387904 UNION ALL
    SELECT 'clock', CAST(name AS TEXT), 'ahead', ahead FROM holdfast_clock
    WHERE ahead NOT BETWEEN 0 AND :last) AS x LIMIT :most;

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
SELECT item, result, previous FROM holdfast_outcomes
WHERE item > :after AND item <= :until AND (result IS NOT NULL OR previous IS NOT NULL);

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
SELECT id, after, compatible, resources, formerly, NULLIF(readings, '') FROM holdfast_stages;

-- name: texts_of_pipelines
SELECT id, guards, tuned, provenance FROM holdfast_pipelines;

-- name: texts_of_resources
SELECT id, spec, tuned FROM holdfast_resources;

-- name: texts_of_minutes
SELECT minute, counts FROM holdfast_minutes;

-- name: texts_of_actions
SELECT id, filter, place, preview, counts FROM holdfast_actions;

-- name: texts_of_sources
SELECT id, memory, found FROM holdfast_sources;

-- name: texts_of_deliveries
SELECT id, body FROM holdfast_deliveries;

-- name: texts_of_chains
SELECT item, led_by FROM holdfast_chains WHERE item > :after ORDER BY item LIMIT :most;
