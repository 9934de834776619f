-- name: read_pipelines
SELECT id, name, generation FROM holdfast_pipelines ORDER BY name;

-- name: add_pipeline
INSERT INTO holdfast_pipelines (name, generation, created_at, updated_at, recheck) VALUES (:name, 0, :now, :now, 0)
ON CONFLICT (name) DO NOTHING;

-- name: raise_generation
-- Only something other than holdfast can have written the highest number there is.
UPDATE holdfast_pipelines SET updated_at = :now,
    generation = CASE WHEN generation = 9223372036854775807 THEN generation - 1 ELSE generation + 1 END
WHERE id = :pipeline RETURNING generation;

-- name: read_stages
-- The whole layout: a few rows, read again only when the generation has changed.
SELECT s.id, s.pipeline, p.name, s.name, s.position, s.after, s.version, s.max_attempts, s.active,
       s.created_generation, s.changed_generation, s.backfill_next, s.backfill_until, s.compatible, s.after_children, s.resources,
       s.paused, s.reason, s.retry_after, s.paused_at, s.formerly, s.hold_next, s.hold_until, s.hold_reason,
       s.max_reruns_per_hour, s.readings, s.type, s.keep_previous
FROM holdfast_stages s JOIN holdfast_pipelines p ON p.id = s.pipeline ORDER BY p.name, s.position, s.id;

-- name: add_stage
INSERT INTO holdfast_stages (pipeline, name, position, after, version, max_attempts, active,
    created_generation, changed_generation, backfill_next, backfill_until, hold_next, hold_until, hold_reason,
    compatible, after_children, resources, max_reruns_per_hour, readings, type, keep_previous)
VALUES (:pipeline, :name, :position, :after, :version, :max_attempts, 1, :generation, :generation, :next, :until,
    :hold_next, :hold_until, :hold_reason, :compatible, :after_children, :resources, :max_reruns_per_hour, :readings, :type,
    :keep_previous);

-- name: change_stage
UPDATE holdfast_stages SET position = :position, after = :after, version = :version, max_attempts = :max_attempts,
    active = :active, changed_generation = :changed, backfill_next = :next, backfill_until = :until,
    hold_next = :hold_next, hold_until = :hold_until, hold_reason = :hold_reason, compatible = :compatible,
    after_children = :after_children, resources = :resources, max_reruns_per_hour = :max_reruns_per_hour,
    readings = :readings, type = :type, keep_previous = :keep_previous
WHERE id = :stage;

-- name: set_readings
UPDATE holdfast_stages SET readings = :readings WHERE id = :stage;

-- name: set_provenance
UPDATE holdfast_pipelines SET provenance = :provenance WHERE id = :pipeline;

-- name: set_origin
UPDATE holdfast_pipelines SET origin = :origin WHERE id = :pipeline;

-- name: set_type_of_data
UPDATE holdfast_pipelines SET type = :type WHERE id = :pipeline;

-- name: declared_of
SELECT origin, type FROM holdfast_pipelines WHERE name = :name;

-- name: newest_item
SELECT COALESCE(MAX(id), 0) FROM holdfast_items WHERE pipeline = :pipeline;

-- name: take_backfill
-- One worker at a time back-fills the next chunk; the row says where it begins.
SELECT backfill_next, backfill_until, pipeline FROM holdfast_stages
WHERE id = :stage AND active = 1 AND backfill_next IS NOT NULL {for_update};

-- name: move_backfill
UPDATE holdfast_stages SET backfill_next = :next WHERE id = :stage;

-- name: stages_to_hold
SELECT id FROM holdfast_stages WHERE active = 1 AND hold_next IS NOT NULL ORDER BY id;

-- name: take_hold_walk
SELECT hold_next, hold_until, pipeline, hold_reason FROM holdfast_stages
WHERE id = :stage AND active = 1 AND hold_next IS NOT NULL {for_update};

-- name: move_hold_walk
UPDATE holdfast_stages SET hold_next = :next WHERE id = :stage;

-- name: end_hold_walks
-- What has not been put on hold yet begins like any work of a new stage.
UPDATE holdfast_stages SET backfill_next = COALESCE(backfill_next, hold_next),
    backfill_until = CASE WHEN backfill_next IS NULL THEN hold_until ELSE backfill_until END,
    hold_next = NULL, hold_until = NULL WHERE id {in stages} AND hold_next IS NOT NULL RETURNING id;

-- name: items_from
SELECT id FROM holdfast_items WHERE pipeline = :pipeline AND id >= :first AND id <= :last ORDER BY id LIMIT :most;

-- name: stages_to_backfill
SELECT id FROM holdfast_stages WHERE active = 1 AND backfill_next IS NOT NULL ORDER BY id;

-- name: withdraw_waiting
-- Removes waiting work of a stage whose predecessors have not all passed. Reruns were asked for, and stay.
DELETE FROM holdfast_waiting WHERE stage = :stage AND rerun = 0 AND (
    SELECT COUNT(*) FROM holdfast_outcomes o WHERE o.item = holdfast_waiting.item AND o.stage {in before}
    AND o.state IN ('done', 'skipped')) < :needed
RETURNING item;

-- name: withdraw_held
DELETE FROM holdfast_holds WHERE stage = :stage AND rerun = 0 AND (
    SELECT COUNT(*) FROM holdfast_outcomes o WHERE o.item = holdfast_holds.item AND o.stage {in before}
    AND o.state IN ('done', 'skipped')) < :needed
RETURNING item;

-- name: withdraw_delayed
DELETE FROM holdfast_delayed WHERE stage = :stage AND rerun = 0 AND (
    SELECT COUNT(*) FROM holdfast_outcomes o WHERE o.item = holdfast_delayed.item AND o.stage {in before}
    AND o.state IN ('done', 'skipped')) < :needed
RETURNING item;

-- name: items_with_outcomes
SELECT DISTINCT item FROM holdfast_outcomes WHERE item {in items} ORDER BY item;
