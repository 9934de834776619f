-- One statement with several steps, which SQLite cannot do. Rows are taken by physical address (ctid): no statistics can
-- change the plan, and the limit is exact. Rows that another transaction has locked are skipped, not waited for.

-- name: claim
-- Turn up to :most waiting rows of a stage, best first, into leases, and return what the handlers need.
WITH taken AS (
    DELETE FROM holdfast_waiting WHERE ctid = ANY(ARRAY(
        SELECT ctid FROM holdfast_waiting WHERE stage = :stage ORDER BY priority, item LIMIT :most FOR UPDATE SKIP LOCKED))
    RETURNING item, priority, attempts, alone, rerun, since),
leased AS (
    INSERT INTO holdfast_leases (item, stage, worker, attempt, alone, rerun, since, ready_at)
    SELECT item, :stage, :worker, LEAST(attempts, 1000000) + 1, alone, rerun, :now, since FROM taken ORDER BY priority, item
    RETURNING id, item, attempt, alone, rerun, ready_at)
SELECT l.id, l.item, l.attempt, l.alone, l.rerun, i.key, i.data, l.ready_at,
    EXISTS (SELECT 1 FROM holdfast_memos m WHERE m.stage = :stage AND m.item = l.item)
FROM leased l JOIN holdfast_items i ON i.id = l.item ORDER BY l.id;

-- name: take_leases
-- End leases that are still held at this stage, and return the others: they were lost before.
WITH ended AS (DELETE FROM holdfast_leases WHERE stage = :stage AND id {in leases} RETURNING id)
SELECT value FROM {list leases} WHERE value NOT IN (SELECT id FROM ended);

-- name: move_leases
-- Move leases that are still held at this stage to the next one, in place (no index is written), and return the lost ones.
WITH moved AS (
    UPDATE holdfast_leases SET stage = :next, attempt = 1, alone = 0, rerun = 0, since = :now
    WHERE stage = :stage AND id {in leases} RETURNING id)
SELECT value FROM {list leases} WHERE value NOT IN (SELECT id FROM moved);

-- name: take_due
DELETE FROM holdfast_delayed WHERE ctid = ANY(ARRAY(
    SELECT ctid FROM holdfast_delayed WHERE due_at <= :now ORDER BY due_at LIMIT :most FOR UPDATE SKIP LOCKED))
RETURNING item, stage, attempts, alone, rerun;

-- name: take_held_for_version
DELETE FROM holdfast_holds WHERE ctid = ANY(ARRAY(
    SELECT ctid FROM holdfast_holds WHERE stage = :stage AND kind = 'version' ORDER BY item LIMIT :most FOR UPDATE SKIP LOCKED))
RETURNING item, attempts, alone, rerun;

-- name: free_leases
-- Take leases whose worker has no row. Never by age: a handler may run as long as its worker lives.
-- For isolated work (alone >= 2), also return whether its worker held other leases. All isolated work is taken at once, so
-- that none is judged after its neighbours are gone. In the same statement, the query also sees leases that another reaper
-- is about to take.
WITH freed AS (
    DELETE FROM holdfast_leases WHERE ctid = ANY(ARRAY(
        SELECT l.ctid FROM holdfast_leases l
        WHERE NOT EXISTS (SELECT 1 FROM holdfast_workers w WHERE w.id = l.worker)
        ORDER BY l.alone DESC, l.id LIMIT GREATEST(:most, (
            SELECT COUNT(*) FROM holdfast_leases l
            WHERE l.alone >= 2 AND NOT EXISTS (SELECT 1 FROM holdfast_workers w WHERE w.id = l.worker)))
        FOR UPDATE OF l SKIP LOCKED))
    AND NOT EXISTS (SELECT 1 FROM holdfast_workers w WHERE w.id = holdfast_leases.worker)
    RETURNING id, item, stage, worker, attempt, alone, rerun, since)
SELECT f.*, f.alone >= 2 AND f.worker IN (SELECT worker FROM holdfast_leases GROUP BY worker HAVING worker <> 0 AND COUNT(*) > 1)
FROM freed f;

-- name: claim_these
WITH taken AS (
    DELETE FROM holdfast_waiting WHERE ctid = ANY(ARRAY(
        SELECT w.ctid FROM holdfast_waiting w JOIN holdfast_items i ON i.id = w.item
        WHERE w.stage = :stage AND w.priority = i.priority AND i.id {in items} ORDER BY w.priority, w.item FOR UPDATE OF w SKIP LOCKED))
    RETURNING item, priority, attempts, alone, rerun, since),
leased AS (
    INSERT INTO holdfast_leases (item, stage, worker, attempt, alone, rerun, since, ready_at)
    SELECT item, :stage, :worker, LEAST(attempts, 1000000) + 1, alone, rerun, :now, since FROM taken ORDER BY priority, item
    RETURNING id, item, attempt, alone, rerun, ready_at)
SELECT l.id, l.item, l.attempt, l.alone, l.rerun, i.key, i.data, l.ready_at,
    EXISTS (SELECT 1 FROM holdfast_memos m WHERE m.stage = :stage AND m.item = l.item)
FROM leased l JOIN holdfast_items i ON i.id = l.item ORDER BY l.id;
