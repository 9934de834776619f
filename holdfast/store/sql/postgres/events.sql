-- Rows are taken by physical address (ctid), so that the limit is exact; those that another transaction has locked are skipped.
-- SQLite has neither: its writer lock is held.

-- name: take_counts_of_the_gone
-- Counts of writers that are not live workers, for folding into slot 0.
DELETE FROM holdfast_counts WHERE ctid = ANY(ARRAY(
    SELECT c.ctid FROM holdfast_counts c
    WHERE c.slot <> 0 AND NOT EXISTS (SELECT 1 FROM holdfast_workers w WHERE w.id = c.slot)
    ORDER BY c.slot, c.stage, c.state, c.bucket LIMIT :most FOR UPDATE OF c SKIP LOCKED))
RETURNING stage, state, bucket, n, total_us, most_us;

-- name: take_versions_of_the_gone
DELETE FROM holdfast_versions WHERE ctid = ANY(ARRAY(
    SELECT v.ctid FROM holdfast_versions v
    WHERE v.slot <> 0 AND NOT EXISTS (SELECT 1 FROM holdfast_workers w WHERE w.id = v.slot)
    ORDER BY v.slot, v.stage, v.version LIMIT :most FOR UPDATE OF v SKIP LOCKED))
RETURNING stage, version, type, n;
