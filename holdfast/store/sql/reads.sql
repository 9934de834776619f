-- Questions of the command line and the dashboard. None costs more as the work that is done or waiting grows, but for those
-- of `db check`, which read every row.

-- name: read_counts
SELECT stage, state, bucket, {sum n}, {sum total_us}, MAX(most_us)
FROM holdfast_counts GROUP BY stage, state, bucket;

-- name: stage_of_items
-- All that there is of a stage of some items, one row each; leases are read apart. Both databases begin with the list and
-- look up each item in what waits, whatever their statistics say: a queue that was empty when they were taken is read whole
-- by a join.
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
-- Since when the longest has waited, of those that are next; none is known of what the version before has put there.
SELECT MIN(since) FROM (
    SELECT w.since FROM holdfast_waiting w WHERE w.stage = :stage ORDER BY w.priority, w.item LIMIT :most) AS head WHERE since > 0;

-- name: leases_of_items
SELECT l.item, l.stage, l.attempt, l.since FROM holdfast_leases l WHERE l.item {in items};

-- name: item_outcomes
SELECT stage, state, attempts, started_at, ended_at, version, error, result FROM holdfast_outcomes WHERE item = :item;

-- name: item_lease
SELECT l.id, l.stage, l.worker, l.attempt, l.alone, l.since, w.name, w.process, w.beat_at, w.alive_until, w.clock, w.facts
FROM holdfast_leases l LEFT JOIN holdfast_workers w ON w.id = l.worker WHERE l.item = :item;

-- name: item_status
SELECT value, x.status FROM {list items} LEFT JOIN holdfast_item_status x ON x.item = value;

-- name: ahead_of
-- How many are before an item in its stage's queue; counted no further than :most.
SELECT COUNT(*) FROM (SELECT 1 FROM holdfast_waiting w
    WHERE w.stage = :stage AND (w.priority, w.item) < (:priority, :item) LIMIT :most) AS ahead;

-- name: rows_by_state
-- For `db check`: the counts, counted again the slow way.
SELECT stage, state, COUNT(*) FROM holdfast_item_stages GROUP BY stage, state;

-- name: open_more_than_once
-- For `db check`: a stage of an item must lie in one place only.
SELECT x.item, x.stage, COUNT(*) FROM (
    SELECT item, stage FROM holdfast_waiting UNION ALL
    SELECT item, stage FROM holdfast_delayed UNION ALL
    SELECT item, stage FROM holdfast_holds UNION ALL
    SELECT item, stage FROM holdfast_leases) AS x
GROUP BY x.item, x.stage HAVING COUNT(*) > 1 LIMIT 100;

