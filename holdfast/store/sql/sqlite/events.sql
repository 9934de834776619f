-- SQLite has no physical addresses and no row locks to skip: the writer lock is held.

-- name: take_counts_of_the_gone
DELETE FROM holdfast_counts WHERE (slot, stage, state, bucket) IN (
    SELECT slot, stage, state, bucket FROM holdfast_counts c
    WHERE c.slot <> 0 AND NOT EXISTS (SELECT 1 FROM holdfast_workers w WHERE w.id = c.slot) LIMIT :most)
RETURNING stage, state, bucket, n, total_us, most_us;

-- name: take_versions_of_the_gone
DELETE FROM holdfast_versions WHERE (slot, stage, version, type) IN (
    SELECT slot, stage, version, type FROM holdfast_versions v
    WHERE v.slot <> 0 AND NOT EXISTS (SELECT 1 FROM holdfast_workers w WHERE w.id = v.slot) LIMIT :most)
RETURNING stage, version, type, n;
