-- Sources: which worker looks, what was found, and when the next look is due. Every write of a look is fenced by its worker and
-- run.

-- name: read_sources
-- Read at every poll: only the beginning of the memory, which names its definition.
SELECT s.id, s.pipeline, p.name AS pipeline_name, s.name, s.active, substr(s.memory, 1, 100) AS head, s.due_at, s.worker,
       s.failures, s.error, s.looked_at, s.found,
       CASE WHEN EXISTS (SELECT 1 FROM holdfast_workers w WHERE w.id = s.worker) THEN 1 ELSE 0 END AS held
FROM holdfast_sources s JOIN holdfast_pipelines p ON p.id = s.pipeline ORDER BY p.name, s.name;

-- name: add_source
-- Another worker may be adding it at this moment, which is fine.
INSERT INTO holdfast_sources (pipeline, name, memory, due_at) VALUES (:pipeline, :name, :memory, :due_at)
ON CONFLICT (pipeline, name) DO NOTHING;

-- name: begin_source_anew
-- Its definition has changed, or it is back: a look under the old definition no longer counts.
UPDATE holdfast_sources SET active = 1, memory = :memory, found = NULL, due_at = :due_at, worker = NULL, failures = 0,
    error = NULL
WHERE id = :source;

-- name: retire_source
UPDATE holdfast_sources SET active = 0, worker = NULL WHERE id = :source AND active = 1;

-- name: advance_source
UPDATE holdfast_sources SET due_at = :due_at WHERE id = :source AND due_at > :due_at;

-- name: is_worker
SELECT 1 FROM holdfast_workers WHERE id = :worker;

-- name: take_source
-- The source that has been due the longest and that no other worker holds. One that this worker holds is left over from a look
-- of its own that was interrupted.
WITH chosen AS MATERIALIZED (
    SELECT id FROM holdfast_sources
    WHERE id {in sources} AND active = 1 AND due_at <= :now
      AND (worker IS NULL OR worker = :worker
           OR NOT EXISTS (SELECT 1 FROM holdfast_workers w WHERE w.id = holdfast_sources.worker))
    ORDER BY due_at, id LIMIT 1 {skip_locked})
UPDATE holdfast_sources SET worker = :worker WHERE id IN (SELECT id FROM chosen)
RETURNING id, pipeline, name, memory, run, failures, found;

-- name: last_run
-- Asked where the number of runs cannot be true: the last look in which something was seen.
SELECT COALESCE(MAX(run), 0) FROM holdfast_found WHERE source = :source AND run BETWEEN 0 AND :most;

-- name: begin_look
UPDATE holdfast_sources SET run = :run, found = :found WHERE id = :source AND worker = :worker;

-- name: hold_source
-- No row: another worker looks, or the definition has changed.
SELECT id FROM holdfast_sources WHERE id = :source AND worker = :worker AND run = :run AND active = 1 {for_update};

-- name: save_look
UPDATE holdfast_sources SET memory = COALESCE(CAST(:memory AS TEXT), memory), found = :found WHERE id = :source;

-- name: read_found
SELECT key, mark, run FROM holdfast_found WHERE source = :source AND key {in keys text};

-- name: save_found
INSERT INTO holdfast_found (source, key, mark, run)
SELECT :source, r.key, r.mark, :run FROM {rows key text, mark text} WHERE true
ON CONFLICT (source, key) DO UPDATE SET mark = excluded.mark, run = excluded.run;

-- name: count_unseen
-- What this look has not seen: in parts that were not read because nothing in them had changed, and elsewhere. Run 0 means that
-- it had vanished before.
SELECT COALESCE(SUM(CASE WHEN substr(mark, 1, 8) {in kept text} THEN 1 ELSE 0 END), 0),
       COALESCE(SUM(CASE WHEN substr(mark, 1, 8) {in kept text} THEN 0 ELSE 1 END), 0)
FROM holdfast_found WHERE source = :source AND run > 0 AND run <> :run;

-- name: found_stretch
SELECT MAX(key) FROM (
    SELECT key FROM holdfast_found WHERE source = :source AND key > :after ORDER BY key LIMIT :most) AS stretch;

-- name: set_vanished
UPDATE holdfast_found SET run = 0
WHERE source = :source AND key > :after AND key <= :until AND run > 0 AND run <> :run
  AND NOT (substr(mark, 1, 8) {in kept text})
RETURNING key;

-- name: end_look
UPDATE holdfast_sources SET worker = NULL, memory = COALESCE(CAST(:memory AS TEXT), memory), found = :found,
    due_at = :due_at, failures = :failures, error = :error, looked_at = :now
WHERE id = :source;

-- name: hand_source_back
UPDATE holdfast_sources SET worker = NULL, memory = COALESCE(CAST(:memory AS TEXT), memory), found = :found WHERE id = :source;

-- name: call_sources
UPDATE holdfast_sources SET due_at = :now, failures = 0 WHERE id {in sources} AND active = 1 AND due_at > :now RETURNING id;

-- name: last_item
-- Over all pipelines: the cost does not depend on where the items of one are.
SELECT COALESCE(MAX(id), 0) FROM holdfast_items;

-- name: results_to_look_up
-- For a range of items: the results of a stage without a look-up, or with one from another result or too long ago.
SELECT i.id, i.key, o.result, CAST(:of AS TEXT) || COALESCE(o.output_hash, '') AS mark
FROM holdfast_outcomes o JOIN holdfast_items i ON i.id = o.item
LEFT JOIN holdfast_lookups l ON l.source = :source AND l.key = CAST(i.id AS TEXT)
WHERE o.item > :after AND o.item <= :until AND o.stage = :stage AND o.state = 'done'
  AND (l.key IS NULL OR l.at <= :again OR l.mark <> CAST(:of AS TEXT) || COALESCE(o.output_hash, ''))
ORDER BY o.item LIMIT :most;

-- name: items_to_look_up
-- The same for items themselves.
SELECT i.id, i.key, i.data, CAST(:of AS TEXT) || CAST(i.updated_at AS TEXT) AS mark
FROM holdfast_items i LEFT JOIN holdfast_lookups l ON l.source = :source AND l.key = CAST(i.id AS TEXT)
WHERE i.id > :after AND i.id <= :until AND i.pipeline = :pipeline
  AND (l.key IS NULL OR l.at <= :again OR l.mark <> CAST(:of AS TEXT) || CAST(i.updated_at AS TEXT))
ORDER BY i.id LIMIT :most;

-- name: read_lookups
SELECT key, mark FROM holdfast_lookups WHERE source = :source AND key {in keys text} AND at > :again;

-- name: save_lookups
INSERT INTO holdfast_lookups (source, key, mark, at)
SELECT :source, r.key, r.mark, :now FROM {rows key text, mark text} WHERE true
ON CONFLICT (source, key) DO UPDATE SET mark = excluded.mark, at = excluded.at;
