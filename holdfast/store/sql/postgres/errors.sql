-- Rows are taken by physical address (ctid), so that the limit is exact; those that another transaction has locked are skipped.
-- SQLite has neither: its writer lock is held.

-- name: take_error_groups_of_the_gone
-- Groups of writers that are not live workers, for folding into slot 0.
DELETE FROM holdfast_error_groups WHERE ctid = ANY(ARRAY(
    SELECT g.ctid FROM holdfast_error_groups g
    WHERE g.slot <> 0 AND NOT EXISTS (SELECT 1 FROM holdfast_workers w WHERE w.id = g.slot)
    ORDER BY g.slot, g.stage, g.id LIMIT :most FOR UPDATE OF g SKIP LOCKED))
RETURNING stage, id, kind, place, message, n, amount, first_seen, last_seen, item;
