-- name: read_by_keys
SELECT id, key, data FROM holdfast_items WHERE pipeline = :pipeline AND key {in keys text} ORDER BY id {for_update};

-- name: newest_of_all
-- The newest item and the newest paid call.
SELECT (SELECT MAX(id) FROM holdfast_items), (SELECT MAX(id) FROM holdfast_calls);

-- name: look_up_keys
SELECT key, data FROM holdfast_items
WHERE pipeline = (SELECT id FROM holdfast_pipelines WHERE name = :pipeline) AND key {in keys text};

-- name: insert_items
-- A key that another transaction has just added is skipped; the caller then reads it.
INSERT INTO holdfast_items (pipeline, key, data, type, traceparent, priority, created_at, updated_at)
SELECT :pipeline, r.key, r.data, CAST(:type AS TEXT), CAST(:traceparent AS TEXT), :priority, :now, :now
FROM {rows key text, data text} WHERE true
ON CONFLICT (pipeline, key) DO NOTHING
RETURNING id, key;

-- name: insert_imported_items
INSERT INTO holdfast_items (pipeline, key, data, priority, created_at, updated_at)
SELECT :pipeline, r.key, r.data, r.priority, r.created_at, :now
FROM {rows key text, data text, priority int, created_at bigint} WHERE true
ON CONFLICT (pipeline, key) DO NOTHING
RETURNING id, key;

-- name: numbers_of_keys
SELECT key, id FROM holdfast_items
WHERE pipeline = (SELECT id FROM holdfast_pipelines WHERE name = :pipeline) AND key {in keys text};

-- name: traceparents
SELECT id, traceparent FROM holdfast_items WHERE id {in items} AND traceparent IS NOT NULL;

-- name: update_items
UPDATE holdfast_items SET data = r.data, type = r.type, traceparent = r.traceparent, updated_at = :now
FROM {rows id bigint, data text, type text, traceparent text} WHERE holdfast_items.id = r.id;

-- name: lock_items
-- Locks items while deciding whether a stage can begin. In order, so that two transactions never deadlock.
SELECT id FROM holdfast_items WHERE id {in items} ORDER BY id {for_update};

-- name: find_item
SELECT i.id, i.pipeline, p.name, i.key, i.data, i.priority, i.created_at, i.updated_at
FROM holdfast_items i JOIN holdfast_pipelines p ON p.id = i.pipeline
WHERE i.key = :key AND (CAST(:pipeline AS TEXT) IS NULL OR p.name = :pipeline) ORDER BY p.name;

-- name: names_of_items
SELECT i.id, p.name, i.key FROM holdfast_items i JOIN holdfast_pipelines p ON p.id = i.pipeline WHERE i.id {in items};

-- name: existing_items
SELECT id FROM holdfast_items WHERE id {in items};
