-- SQLite has no physical addresses and no row locks to skip: the writer lock is held.

-- name: take_error_groups_of_the_gone
DELETE FROM holdfast_error_groups WHERE (slot, stage, id) IN (
    SELECT slot, stage, id FROM holdfast_error_groups g
    WHERE g.slot <> 0 AND NOT EXISTS (SELECT 1 FROM holdfast_workers w WHERE w.id = g.slot) LIMIT :most)
RETURNING stage, id, kind, place, message, n, amount, first_seen, last_seen, item;
