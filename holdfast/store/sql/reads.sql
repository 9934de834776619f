-- Questions of the command line and the dashboard. Their cost does not grow with the work that is done or waiting, except for
-- those of `db check`, which read every row.

-- name: read_counts
SELECT stage, state, bucket, {sum n}, {sum total_us}, MAX(most_us)
FROM holdfast_counts GROUP BY stage, state, bucket;

-- name: stage_of_items
-- Everything about a stage of some items, one row each; leases are read separately. Both databases start with the list and
-- look up each item in the queue, whatever their statistics say: a join would read a queue completely if it was empty when the
-- statistics were taken.
SELECT value AS item,
       (SELECT w.attempts FROM holdfast_waiting w WHERE w.stage = :stage AND w.item = value
        AND w.priority = (SELECT i.priority FROM holdfast_items i WHERE i.id = value)) AS waiting,
       (SELECT d.attempts FROM holdfast_delayed d WHERE d.item = value AND d.stage = :stage) AS delayed,
       (SELECT d.due_at FROM holdfast_delayed d WHERE d.item = value AND d.stage = :stage) AS due_at,
       (SELECT d.error FROM holdfast_delayed d WHERE d.item = value AND d.stage = :stage) AS delayed_error,
       (SELECT d.error_group FROM holdfast_delayed d WHERE d.item = value AND d.stage = :stage) AS delayed_group,
       (SELECT h.attempts FROM holdfast_holds h WHERE h.stage = :stage AND h.item = value) AS held,
       (SELECT h.reason FROM holdfast_holds h WHERE h.stage = :stage AND h.item = value) AS held_reason,
       (SELECT h.since FROM holdfast_holds h WHERE h.stage = :stage AND h.item = value) AS held_since,
       o.state, o.attempts, o.started_at, o.ended_at, o.error, o.error_group
FROM {list items} LEFT JOIN holdfast_outcomes o ON o.item = value AND o.stage = :stage;

-- name: waiting_since
-- Since when the oldest of the next items has waited; unknown for rows of the version before.
SELECT MIN(since) FROM (
    SELECT w.since FROM holdfast_waiting w WHERE w.stage = :stage ORDER BY w.priority, w.item LIMIT :most) AS head WHERE since > 0;

-- name: due_since
-- Since when retries are due that no worker has promoted, by stage, as far as the oldest of them tell.
SELECT stage, MIN(due_at) FROM (
    SELECT d.stage, d.due_at FROM holdfast_delayed d WHERE d.due_at <= :now ORDER BY d.due_at LIMIT :most) AS due
GROUP BY stage;

-- name: leases_of_items
SELECT l.item, l.stage, l.attempt, l.since FROM holdfast_leases l WHERE l.item {in items};

-- name: item_outcomes
SELECT stage, state, attempts, started_at, ended_at, version, error, result, previous, previous_version, previous_ended_at
FROM holdfast_outcomes WHERE item = :item;

-- name: item_lease
SELECT l.id, l.stage, l.worker, l.attempt, l.alone, l.since, w.name, w.process, w.beat_at, w.alive_until, w.clock, w.facts
FROM holdfast_leases l LEFT JOIN holdfast_workers w ON w.id = l.worker WHERE l.item = :item;

-- name: item_status
SELECT value, x.status FROM {list items} LEFT JOIN holdfast_item_status x ON x.item = value;

-- name: ahead_of
-- How many items are before one in the queue of its stage, counted up to :most.
SELECT COUNT(*) FROM (SELECT 1 FROM holdfast_waiting w
    WHERE w.stage = :stage AND (w.priority, w.item) < (:priority, :item) LIMIT :most) AS ahead;

-- name: rows_by_state
-- For `db check`: the counts, counted again the slow way.
SELECT stage, state, COUNT(*) FROM holdfast_item_stages GROUP BY stage, state;

-- name: open_more_than_once
-- For `db check`: a stage of an item must be in one table only.
SELECT x.item, x.stage, COUNT(*) FROM (
    SELECT item, stage FROM holdfast_waiting UNION ALL
    SELECT item, stage FROM holdfast_delayed UNION ALL
    SELECT item, stage FROM holdfast_holds UNION ALL
    SELECT item, stage FROM holdfast_leases) AS x
GROUP BY x.item, x.stage HAVING COUNT(*) > 1 LIMIT 100;

