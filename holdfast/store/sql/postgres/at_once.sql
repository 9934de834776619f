-- Whole writes in one statement each, with their counts and their commit mark, to save round trips. Each assumes a generation:
-- it does nothing, and leaves no mark, if that has changed or there is nothing to do. It fails if the mark exists already.

-- name: add_at_once
WITH born AS (
    INSERT INTO holdfast_items (pipeline, key, data, type, traceparent, priority, created_at, updated_at)
    SELECT :pipeline, :key, :data, :type, :traceparent, :priority, {clock}, {clock}
    WHERE :generation = {generation}
    ON CONFLICT (pipeline, key) DO NOTHING RETURNING id),
begun AS (
    INSERT INTO holdfast_waiting (stage, priority, item, attempts, alone, rerun, since)
    SELECT value, :priority, id, 0, 0, 0, {clock} FROM born CROSS JOIN {list stages}),
marked AS (
    INSERT INTO holdfast_commits AS c (writer, seq, at) SELECT :writer, :seq, {clock} FROM born
    ON CONFLICT (writer) DO UPDATE SET seq = excluded.seq, at = excluded.at WHERE c.seq < excluded.seq RETURNING seq),
counted AS (
    INSERT INTO holdfast_counts AS c (slot, stage, state, bucket, n, total_us, most_us)
    SELECT :slot, value, 'pending', -1, (SELECT 1 / COUNT(*) FROM marked), 0, 0 FROM born CROSS JOIN {list stages}
    ON CONFLICT (slot, stage, state, bucket) DO UPDATE SET n = {add c.n})
SELECT id FROM born;

-- name: claim_at_once
WITH taken AS (
    DELETE FROM holdfast_waiting WHERE ctid = ANY(ARRAY(
        SELECT ctid FROM holdfast_waiting
        WHERE stage = :stage AND :generation = {generation}
        ORDER BY priority, item LIMIT :most FOR UPDATE SKIP LOCKED))
    RETURNING item, priority, attempts, alone, rerun, since),
leased AS (
    INSERT INTO holdfast_leases (item, stage, worker, attempt, alone, rerun, since, ready_at)
    SELECT item, :stage, :worker, LEAST(attempts, 1000000) + 1, alone, rerun, {clock}, since FROM taken ORDER BY priority, item
    RETURNING id, item, attempt, alone, rerun, ready_at),
marked AS (
    INSERT INTO holdfast_commits AS c (writer, seq, at) SELECT :writer, :seq, {clock} WHERE EXISTS (SELECT 1 FROM leased)
    ON CONFLICT (writer) DO UPDATE SET seq = excluded.seq, at = excluded.at WHERE c.seq < excluded.seq RETURNING seq),
counted AS (
    INSERT INTO holdfast_counts AS c (slot, stage, state, bucket, n, total_us, most_us)
    SELECT :worker, :stage, state, -1, sign * n / (SELECT COUNT(*) FROM marked), 0, 0
    FROM (SELECT COUNT(*) AS n FROM leased) AS all_of_them, (VALUES ('pending', -1), ('in_progress', 1)) AS moves (state, sign)
    WHERE n > 0
    ON CONFLICT (slot, stage, state, bucket) DO UPDATE SET n = {add c.n})
SELECT l.id, l.item, l.attempt, l.alone, l.rerun, i.key, i.data, l.ready_at,
    EXISTS (SELECT 1 FROM holdfast_memos m WHERE m.stage = :stage AND m.item = l.item)
FROM leased l JOIN holdfast_items i ON i.id = l.item ORDER BY l.id;
