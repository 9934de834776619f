-- Error groups: failures with the same cause, counted together.

-- name: add_error_groups
INSERT INTO holdfast_error_groups (slot, stage, id, kind, place, message, n, amount, first_seen, last_seen, item)
{values slot bigint, stage bigint, id text, kind text, place text, message text, n bigint, amount bigint, first_seen bigint, last_seen bigint, item bigint}
ON CONFLICT (slot, stage, id) DO UPDATE SET n = {add holdfast_error_groups.n},
    amount = {add holdfast_error_groups.amount},
    first_seen = CASE WHEN excluded.first_seen < holdfast_error_groups.first_seen THEN excluded.first_seen ELSE holdfast_error_groups.first_seen END,
    item = CASE WHEN excluded.last_seen >= holdfast_error_groups.last_seen THEN excluded.item ELSE holdfast_error_groups.item END,
    last_seen = CASE WHEN excluded.last_seen >= holdfast_error_groups.last_seen THEN excluded.last_seen ELSE holdfast_error_groups.last_seen END;

-- name: trim_error_groups
-- Groups of a writer and a stage, except the :most seen last.
DELETE FROM holdfast_error_groups WHERE slot = :slot AND stage = :stage AND last_seen < (
    SELECT g.last_seen FROM holdfast_error_groups g WHERE g.slot = :slot AND g.stage = :stage
    ORDER BY g.last_seen DESC LIMIT 1 OFFSET CAST(:most AS BIGINT) - 1);

-- name: read_error_groups
SELECT stage, id, kind, place, message, n, amount, first_seen, last_seen, item FROM holdfast_error_groups;

-- name: has_error_group
SELECT 1 WHERE EXISTS (SELECT 1 FROM holdfast_error_groups WHERE id = :id)
    OR EXISTS (SELECT 1 FROM holdfast_outcomes WHERE error_group = :id);

-- name: items_of_error_group
SELECT o.item FROM holdfast_outcomes o WHERE o.error_group = :id AND o.stage {in stages} LIMIT :most;

-- name: paid_in_leases
-- The money charged or in doubt for attempts.
SELECT lease, {sum amount} FROM holdfast_calls
WHERE item {in items} AND stage = :stage AND lease {in leases} AND state IN ('done', 'rejected', 'doubtful', 'intended')
GROUP BY lease;

-- name: delete_error_groups
DELETE FROM holdfast_error_groups WHERE last_seen < :before;
