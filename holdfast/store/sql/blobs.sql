-- name: store_identity
-- When the tables were made: the same in every copy of a store, and another in every other store.
SELECT migrated_at FROM holdfast_schema_version ORDER BY version LIMIT 1;

-- name: oldest_lease
SELECT MIN(since) FROM holdfast_leases;

-- name: hashes_in_items
SELECT id, data FROM holdfast_items WHERE id > :after AND id <= :until AND data LIKE '%sha256:%';

-- name: hashes_in_outcomes
SELECT item, COALESCE(result, '') || COALESCE(previous, '') FROM holdfast_outcomes
WHERE item > :after AND item <= :until AND (result LIKE '%sha256:%' OR previous LIKE '%sha256:%');

-- name: hashes_in_memos
SELECT item, value, stage, name FROM holdfast_memos WHERE (stage, item, name) > (:stage, :item, :name) AND value LIKE '%sha256:%'
ORDER BY stage, item, name LIMIT :most;

-- name: hashes_in_calls
SELECT id, facts || COALESCE(value, '') FROM holdfast_calls
WHERE id > :after AND id <= :until AND (value LIKE '%sha256:%' OR facts LIKE '%sha256:%');

-- name: hashes_in_events
SELECT id, data FROM holdfast_events WHERE id > :after AND id <= :until AND data LIKE '%sha256:%';
