-- Changes of state: a row leaves one table and enters another. Who deletes the row owns the work.
-- Those that take rows in batches are in sqlite/moves.sql and postgres/moves.sql.

-- name: begin_waiting
-- For new items: no row of theirs can exist yet.
INSERT INTO holdfast_waiting (since, stage, priority, item, attempts, alone, rerun)
{values :since bigint, stage bigint, priority int, item bigint, attempts int, alone smallint, rerun smallint};

-- name: enter_waiting
INSERT INTO holdfast_waiting (stage, priority, item, attempts, alone, rerun, since)
SELECT r.stage, i.priority, r.item, r.attempts, r.alone, r.rerun, :since
FROM {rows item bigint, stage bigint, attempts int, alone smallint, rerun smallint}
JOIN holdfast_items i ON i.id = r.item WHERE true
ON CONFLICT (stage, priority, item) DO NOTHING;

-- name: enter_delayed
INSERT INTO holdfast_delayed (item, stage, due_at, attempts, alone, rerun, error, error_group)
{values item bigint, stage bigint, due_at bigint, attempts int, alone smallint, rerun smallint, error text, error_group text};

-- name: enter_held
INSERT INTO holdfast_holds (stage, item, kind, reason, attempts, alone, rerun, since)
{values stage bigint, item bigint, kind text, reason text, attempts int, alone smallint, rerun smallint, since bigint};

-- name: read_clock
SELECT ahead FROM holdfast_clock WHERE name = :name {for_update};

-- name: forget_clocks
-- Clocks of earlier boots.
DELETE FROM holdfast_clock WHERE name <> :name;

-- name: set_clock
INSERT INTO holdfast_clock (name, ahead) VALUES (:name, :ahead) ON CONFLICT (name) DO UPDATE SET ahead = excluded.ahead;

-- Times beyond :last were written by something other than holdfast, and stay as they are: shifted, they might not fit into
-- their column.

-- name: shift_delayed
UPDATE holdfast_delayed SET due_at = due_at + :by WHERE due_at BETWEEN -CAST(:last AS BIGINT) AND :last;

-- name: shift_gates
UPDATE holdfast_resources SET
    cool_until = CASE WHEN cool_until <= 0 THEN 0 WHEN cool_until <= :last THEN cool_until + :by ELSE cool_until END,
    open_until = CASE WHEN open_until BETWEEN -CAST(:last AS BIGINT) AND :last THEN open_until + :by ELSE open_until END,
    retry_after = CASE WHEN paused = 1 AND retry_after BETWEEN -CAST(:last AS BIGINT) AND :last THEN retry_after + :by ELSE retry_after END,
    paced_at = CASE WHEN paced_at <= 0 THEN 0 WHEN paced_at <= :last THEN paced_at + :by ELSE paced_at END;

-- name: shift_buckets
UPDATE holdfast_buckets SET used_until = used_until + 1000 * CAST(:by AS BIGINT) WHERE used_until BETWEEN -CAST(:last AS BIGINT) AND :last;

-- name: shift_pauses
UPDATE holdfast_pipelines SET retry_after = retry_after + :by WHERE paused = 1 AND retry_after BETWEEN -CAST(:last AS BIGINT) AND :last;

-- name: shift_stage_pauses
UPDATE holdfast_stages SET retry_after = retry_after + :by WHERE paused = 1 AND retry_after BETWEEN -CAST(:last AS BIGINT) AND :last;

-- name: count_due
-- By stage: how many of the first so many that are due already.
SELECT stage, COUNT(*) FROM (
    SELECT d.stage FROM holdfast_delayed d {by ix_holdfast_delayed_due} WHERE d.due_at <= :now ORDER BY d.due_at LIMIT :most) AS first
GROUP BY stage;

-- name: next_due
SELECT MIN(due_at) FROM holdfast_delayed;

-- name: free_stages
SELECT DISTINCT stage FROM holdfast_leases l WHERE NOT EXISTS (SELECT 1 FROM holdfast_workers w WHERE w.id = l.worker);

-- name: leases_at
-- The same columns as a claim returns.
SELECT l.id, l.item, l.attempt, l.alone, l.rerun, i.key, i.data, l.ready_at,
    EXISTS (SELECT 1 FROM holdfast_memos m WHERE m.stage = :stage AND m.item = l.item)
FROM holdfast_leases l JOIN holdfast_items i ON i.id = l.item WHERE l.worker = :worker AND l.stage = :stage ORDER BY l.id;

-- name: leases_of
SELECT id, stage, item FROM holdfast_leases WHERE worker = :worker;

-- name: begin_if_ready
-- Begins a stage for each of these items (which are locked) if all its predecessors have passed and it has no row yet.
INSERT INTO holdfast_waiting (stage, priority, item, attempts, alone, rerun, since)
SELECT :stage, i.priority, i.id, 0, 0, 0, :since FROM holdfast_items i
WHERE i.id {in items}
  AND (SELECT COUNT(*) FROM holdfast_outcomes o WHERE o.item = i.id AND o.stage {in before} AND o.state IN ('done', 'skipped')) = :needed
  AND NOT EXISTS (SELECT 1 FROM holdfast_outcomes o WHERE o.item = i.id AND o.stage = :stage)
  AND NOT EXISTS (SELECT 1 FROM holdfast_waiting w WHERE w.stage = :stage AND w.priority = i.priority AND w.item = i.id)
  AND NOT EXISTS (SELECT 1 FROM holdfast_delayed d WHERE d.item = i.id AND d.stage = :stage)
  AND NOT EXISTS (SELECT 1 FROM holdfast_leases l WHERE l.item = i.id AND l.stage = :stage)
  AND NOT EXISTS (SELECT 1 FROM holdfast_holds h WHERE h.stage = :stage AND h.item = i.id)
ON CONFLICT (stage, priority, item) DO NOTHING
RETURNING item;

-- name: reopen
-- Sends finished stages back to waiting, unless they are open already. Their outcome stays readable.
INSERT INTO holdfast_waiting (stage, priority, item, attempts, alone, rerun, since)
SELECT r.stage, i.priority, r.item, 0, 0, :rerun, :since
FROM {rows item bigint, stage bigint} JOIN holdfast_items i ON i.id = r.item
WHERE NOT EXISTS (SELECT 1 FROM holdfast_waiting w WHERE w.stage = r.stage AND w.priority = i.priority AND w.item = r.item)
  AND NOT EXISTS (SELECT 1 FROM holdfast_delayed d WHERE d.item = r.item AND d.stage = r.stage)
  AND NOT EXISTS (SELECT 1 FROM holdfast_leases l WHERE l.item = r.item AND l.stage = r.stage)
  AND NOT EXISTS (SELECT 1 FROM holdfast_holds h WHERE h.stage = r.stage AND h.item = r.item)
ON CONFLICT (stage, priority, item) DO NOTHING
RETURNING item, stage;

-- name: revoke_leases
-- Takes leases of a stage away from their workers.
DELETE FROM holdfast_leases WHERE stage = :stage AND item {in items} RETURNING item, attempt, alone, rerun, id;

-- name: take_stray_waiting
-- Of the next :most in a queue, those without an item. An item and its row here are always added in one transaction.
DELETE FROM holdfast_waiting WHERE stage = :stage AND (priority, item) IN (
    SELECT head.priority, head.item FROM (
        SELECT w.priority, w.item FROM holdfast_waiting w WHERE w.stage = :stage ORDER BY w.priority, w.item LIMIT :most) AS head
    WHERE NOT EXISTS (SELECT 1 FROM holdfast_items i WHERE i.id = head.item))
RETURNING item, attempts;

-- name: has_stray_waiting
SELECT value FROM {list stages} WHERE EXISTS (
    SELECT 1 FROM (SELECT w.item FROM holdfast_waiting w WHERE w.stage = value ORDER BY w.priority, w.item LIMIT :most) AS head
    WHERE NOT EXISTS (SELECT 1 FROM holdfast_items i WHERE i.id = head.item));

-- name: disown
-- Leases that their live worker does not know of: detached, so that the reaper frees them.
UPDATE holdfast_leases SET worker = 0 WHERE id {in leases};

-- name: look_for_work
-- The generation; then the stages in which something waits, and whether work is on hold for a version there.
SELECT CAST(0 AS BIGINT), {generation}
UNION ALL
SELECT value, CAST(0 AS BIGINT) FROM {list stages} WHERE EXISTS (SELECT 1 FROM holdfast_waiting w WHERE w.stage = value)
UNION ALL
SELECT value, CAST(1 AS BIGINT) FROM {list stages}
WHERE EXISTS (SELECT 1 FROM holdfast_holds h WHERE h.stage = value AND h.kind = 'version');

-- name: any_open
-- Whether these stages have open work: one index lookup for each, whatever their size.
SELECT value FROM {list stages}
WHERE EXISTS (SELECT 1 FROM holdfast_waiting w WHERE w.stage = value)
   OR EXISTS (SELECT 1 FROM holdfast_leases l WHERE l.stage = value)
   OR EXISTS (SELECT 1 FROM holdfast_delayed d WHERE d.stage = value)
   OR EXISTS (SELECT 1 FROM holdfast_holds h WHERE h.stage = value AND h.kind = 'version' AND value {in current})
LIMIT 1;
