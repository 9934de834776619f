-- SQLite has no physical addresses and no row locks to skip: the writer lock is held. Which finished stages belong to a group is
-- in a table, not in an index (migration 5).

-- name: take_error_groups_of_the_gone
DELETE FROM holdfast_error_groups WHERE (slot, stage, id) IN (
    SELECT slot, stage, id FROM holdfast_error_groups g
    WHERE g.slot <> 0 AND NOT EXISTS (SELECT 1 FROM holdfast_workers w WHERE w.id = g.slot) LIMIT :most)
RETURNING stage, id, kind, place, message, n, amount, first_seen, last_seen, item;

-- name: has_error_group
SELECT 1 WHERE EXISTS (SELECT 1 FROM holdfast_error_groups WHERE id = :id)
    OR EXISTS (SELECT 1 FROM holdfast_grouped WHERE error_group = :id);

-- name: items_of_error_group
SELECT g.item FROM holdfast_grouped g WHERE g.error_group = :id AND g.stage {in stages} LIMIT :most;
