-- The writer lock makes several steps atomic. Rows are returned packed into one JSON text: fetched one by one, each row
-- would release the interpreter lock to another thread and wait to get it back. The same statements are described in
-- postgres/moves.sql.

-- name: claim
INSERT INTO holdfast_leases (item, stage, worker, attempt, alone, rerun, since, ready_at)
SELECT item, :stage, :worker, MIN(attempts, 1000000) + 1, alone, rerun, :now, since FROM holdfast_waiting
WHERE stage = :stage ORDER BY priority, item LIMIT :most;
DELETE FROM holdfast_waiting WHERE stage = :stage AND (priority, item) IN (
    SELECT priority, item FROM holdfast_waiting WHERE stage = :stage ORDER BY priority, item LIMIT :most);
SELECT json_group_array(json_array(l.id, l.item, l.attempt, l.alone, l.rerun, i.key, i.data, l.ready_at,
    EXISTS (SELECT 1 FROM holdfast_memos m WHERE m.stage = :stage AND m.item = l.item))) AS packed
FROM holdfast_leases l JOIN holdfast_items i ON i.id = l.item
WHERE l.id > (SELECT seq FROM sqlite_sequence WHERE name = 'holdfast_leases') - changes();

-- name: take_leases
SELECT value FROM {list leases} WHERE NOT EXISTS (SELECT 1 FROM holdfast_leases WHERE id = value AND stage = :stage);
DELETE FROM holdfast_leases WHERE stage = :stage AND id {in leases};

-- name: move_leases
SELECT value FROM {list leases} WHERE NOT EXISTS (SELECT 1 FROM holdfast_leases WHERE id = value AND stage = :stage);
UPDATE holdfast_leases SET stage = :next, attempt = 1, alone = 0, rerun = 0, since = :now
WHERE stage = :stage AND id {in leases};

-- name: take_due
SELECT json_group_array(json_array(item, stage, attempts, alone, rerun)) AS packed FROM (
    SELECT item, stage, attempts, alone, rerun FROM holdfast_delayed WHERE due_at <= :now ORDER BY due_at, item, stage LIMIT :most);
DELETE FROM holdfast_delayed WHERE (item, stage) IN (
    SELECT item, stage FROM holdfast_delayed WHERE due_at <= :now ORDER BY due_at, item, stage LIMIT :most);

-- name: take_held_for_version
DELETE FROM holdfast_holds WHERE stage = :stage AND item IN (
    SELECT item FROM holdfast_holds WHERE stage = :stage AND kind = 'version' ORDER BY item LIMIT :most)
RETURNING item, attempts, alone, rerun;

-- name: free_leases
SELECT json_group_array(json_array(id, item, stage, worker, attempt, alone, rerun, since,
    alone >= 2 AND worker IN (SELECT worker FROM holdfast_leases GROUP BY worker HAVING worker <> 0 AND COUNT(*) > 1))) AS packed
FROM (SELECT * FROM holdfast_leases l
    WHERE NOT EXISTS (SELECT 1 FROM holdfast_workers w WHERE w.id = l.worker) ORDER BY l.alone DESC, l.id
    LIMIT MAX(:most, (SELECT COUNT(*) FROM holdfast_leases l
        WHERE l.alone >= 2 AND NOT EXISTS (SELECT 1 FROM holdfast_workers w WHERE w.id = l.worker))));
DELETE FROM holdfast_leases WHERE id IN (
    SELECT l.id FROM holdfast_leases l
    WHERE NOT EXISTS (SELECT 1 FROM holdfast_workers w WHERE w.id = l.worker) ORDER BY l.alone DESC, l.id
    LIMIT MAX(:most, (SELECT COUNT(*) FROM holdfast_leases l
        WHERE l.alone >= 2 AND NOT EXISTS (SELECT 1 FROM holdfast_workers w WHERE w.id = l.worker))));

-- name: claim_these
INSERT INTO holdfast_leases (item, stage, worker, attempt, alone, rerun, since, ready_at)
SELECT w.item, :stage, :worker, MIN(w.attempts, 1000000) + 1, w.alone, w.rerun, :now, w.since
FROM holdfast_items i JOIN holdfast_waiting w ON w.stage = :stage AND w.priority = i.priority AND w.item = i.id
WHERE i.id {in items} ORDER BY w.priority, w.item;
DELETE FROM holdfast_waiting WHERE stage = :stage AND (priority, item) IN (
    SELECT i.priority, i.id FROM holdfast_items i WHERE i.id {in items});
SELECT json_group_array(json_array(l.id, l.item, l.attempt, l.alone, l.rerun, i.key, i.data, l.ready_at,
    EXISTS (SELECT 1 FROM holdfast_memos m WHERE m.stage = :stage AND m.item = l.item))) AS packed
FROM holdfast_leases l JOIN holdfast_items i ON i.id = l.item
WHERE l.id > (SELECT seq FROM sqlite_sequence WHERE name = 'holdfast_leases') - changes();
