-- Pages of items, and of stages of items, in the order in which the items were added. Each statement walks one index in that
-- order and stops when the page is full; where no index has it, a sum (`id + 0`) says so, and what is found is sorted.

-- name: walk_items
SELECT i.id, i.pipeline, i.key, i.created_at, i.updated_at FROM holdfast_items i
WHERE i.id > :after AND i.id <= :until AND (CAST(:pipeline AS BIGINT) IS NULL OR i.pipeline + 0 = :pipeline)
  AND i.key {glob} :key
ORDER BY i.id LIMIT :most;

-- name: some_items
-- By the index of keys, and so in no order: up to :most of the keys from :low to :high, and whether they fit.
SELECT i.id, i.key {glob} :key FROM holdfast_items i
WHERE i.pipeline {in pipelines} AND i.key >= :low AND i.key <= :high LIMIT :most;

-- name: are_many_items
-- Whether there are more than :most of these keys.
SELECT EXISTS (SELECT 1 FROM holdfast_items i WHERE i.pipeline {in pipelines} AND i.key >= :low AND i.key <= :high LIMIT 1 OFFSET :most);

-- name: read_items
SELECT value AS id, i.pipeline, i.key, i.created_at, i.updated_at
FROM {list items} LEFT JOIN holdfast_items i ON i.id = value ORDER BY value;

-- name: versions_and_costs
-- Of stages of items: the version of their result, and what was charged for their calls.
SELECT r.item, r.stage,
       (SELECT o.version FROM holdfast_outcomes o WHERE o.item = r.item AND o.stage = r.stage),
       COALESCE((SELECT {sum c.amount} FROM holdfast_calls c
                 WHERE c.item = r.item AND c.stage = r.stage AND c.state IN ('done', 'rejected')), 0)
FROM {rows item bigint, stage bigint};

-- name: priorities_waiting
-- The distinct priorities in a queue, with one index lookup for each.
WITH RECURSIVE found(priority) AS (
    SELECT MIN(w.priority) FROM holdfast_waiting w WHERE w.stage = :stage
    UNION ALL
    SELECT (SELECT MIN(w.priority) FROM holdfast_waiting w WHERE w.stage = :stage AND w.priority > found.priority)
    FROM found WHERE found.priority IS NOT NULL)
SELECT priority FROM found WHERE priority IS NOT NULL LIMIT :most;

-- Stages of items. Nothing is joined: each is looked up for the rows of the page, so that no plan can go wrong.

-- name: page_waiting
SELECT w.item, w.stage, 'pending' AS state, w.attempts, CAST(NULL AS BIGINT) AS next_attempt_at, CAST(NULL AS TEXT) AS error,
       CAST(NULL AS BIGINT) AS updated_at
FROM holdfast_waiting w
WHERE w.stage = :stage AND w.priority = :priority AND w.item > :after AND w.item <= :last
  AND (CAST(:key AS TEXT) IS NULL OR (SELECT i.key FROM holdfast_items i WHERE i.id = w.item) {glob} :key)
ORDER BY w.item LIMIT :most;

-- name: page_waiting_mixed
-- For a queue with very many priorities, which is read completely.
SELECT w.item, w.stage, 'pending' AS state, w.attempts, CAST(NULL AS BIGINT) AS next_attempt_at, CAST(NULL AS TEXT) AS error,
       CAST(NULL AS BIGINT) AS updated_at
FROM holdfast_waiting w
WHERE w.stage = :stage AND w.item > :after AND w.item <= :last
  AND (CAST(:key AS TEXT) IS NULL OR (SELECT i.key FROM holdfast_items i WHERE i.id = w.item) {glob} :key)
ORDER BY w.item + 0 LIMIT :most;

-- name: page_delayed
SELECT d.item, d.stage, 'retry_later' AS state, d.attempts, d.due_at AS next_attempt_at, d.error,
       CAST(NULL AS BIGINT) AS updated_at
FROM holdfast_delayed d {by ix_holdfast_delayed_stage}
WHERE d.stage = :stage AND d.item > :after AND d.item <= :last AND (CAST(:error AS TEXT) IS NULL OR {position}(d.error, :error) > 0)
  AND (CAST(:group AS TEXT) IS NULL OR d.error_group = :group)
  AND (CAST(:key AS TEXT) IS NULL OR (SELECT i.key FROM holdfast_items i WHERE i.id = d.item) {glob} :key)
ORDER BY d.item LIMIT :most;

-- name: page_held
SELECT h.item, h.stage, 'on_hold' AS state, h.attempts, CAST(NULL AS BIGINT) AS next_attempt_at, h.reason AS error,
       h.since AS updated_at
FROM holdfast_holds h
WHERE h.stage = :stage AND h.item > :after AND h.item <= :last AND (CAST(:error AS TEXT) IS NULL OR {position}(h.reason, :error) > 0)
  AND (CAST(:key AS TEXT) IS NULL OR (SELECT i.key FROM holdfast_items i WHERE i.id = h.item) {glob} :key)
ORDER BY h.item LIMIT :most;

-- name: page_leased
-- There are only as many leases as workers hold.
SELECT l.item, l.stage, 'in_progress' AS state, l.attempt AS attempts, CAST(NULL AS BIGINT) AS next_attempt_at,
       CAST(NULL AS TEXT) AS error, l.since AS updated_at
FROM holdfast_leases l
WHERE l.stage {in stages} AND l.item > :after AND l.item <= :last
  AND (CAST(:key AS TEXT) IS NULL OR (SELECT i.key FROM holdfast_items i WHERE i.id = l.item) {glob} :key)
ORDER BY l.item + 0 LIMIT :most;

-- name: page_passed
-- Done and skipped have no index: outcomes are scanned, from an item on.
SELECT o.item, o.stage, o.state, o.attempts, CAST(NULL AS BIGINT) AS next_attempt_at, o.error, o.ended_at AS updated_at
FROM holdfast_outcomes o
WHERE o.item > :after AND o.item <= :last AND o.stage {in stages} AND o.state {in states text}
  AND (CAST(:error AS TEXT) IS NULL OR {position}(o.error, :error) > 0)
  AND (CAST(:key AS TEXT) IS NULL OR (SELECT i.key FROM holdfast_items i WHERE i.id = o.item) {glob} :key)
  AND {stands}
ORDER BY o.item LIMIT :most;

-- name: page_bad
SELECT o.item, o.stage, o.state, o.attempts, CAST(NULL AS BIGINT) AS next_attempt_at, o.error, o.ended_at AS updated_at
FROM holdfast_outcomes o {by ix_holdfast_outcomes_bad}
WHERE o.stage = :stage AND o.state = :state AND o.state NOT IN ('done', 'skipped') AND o.item > :after AND o.item <= :last
  AND (CAST(:error AS TEXT) IS NULL OR {position}(o.error, :error) > 0)
  AND (CAST(:key AS TEXT) IS NULL OR (SELECT i.key FROM holdfast_items i WHERE i.id = o.item) {glob} :key)
  AND {stands}
ORDER BY o.item LIMIT :most;

-- name: some_bad
-- The same without what the index does not have, for counting.
SELECT o.item, o.stage, o.state
FROM holdfast_outcomes o {by ix_holdfast_outcomes_bad}
WHERE o.stage = :stage AND o.state = :state AND o.state NOT IN ('done', 'skipped') AND o.item > :after AND o.item <= :last
  AND (CAST(:key AS TEXT) IS NULL OR (SELECT i.key FROM holdfast_items i WHERE i.id = o.item) {glob} :key)
  AND {stands}
ORDER BY o.item LIMIT :most;

-- name: page_group
-- SQLite has a table of groups instead of an index (migration 5).
SELECT o.item, o.stage, o.state, o.attempts, CAST(NULL AS BIGINT) AS next_attempt_at, o.error, o.ended_at AS updated_at
FROM {of_group} WHERE {group} = :group AND {group_item} > :after AND {group_until} AND o.stage {in stages} AND o.state {in states text}
  AND (CAST(:error AS TEXT) IS NULL OR {position}(o.error, :error) > 0)
  AND (CAST(:key AS TEXT) IS NULL OR (SELECT i.key FROM holdfast_items i WHERE i.id = o.item) {glob} :key)
  AND {stands}
ORDER BY {group_item} LIMIT :most;

-- How far a walk comes with :look rows, of which most may not be wanted: how many there are, and the item of the last.

-- name: extent_waiting
SELECT COUNT(*), MAX(item) FROM (
    SELECT w.item FROM holdfast_waiting w WHERE w.stage = :stage AND w.priority = :priority AND w.item > :after
    ORDER BY w.item LIMIT :look) AS passed;

-- name: extent_delayed
SELECT COUNT(*), MAX(item) FROM (
    SELECT d.item FROM holdfast_delayed d {by ix_holdfast_delayed_stage} WHERE d.stage = :stage AND d.item > :after
    ORDER BY d.item LIMIT :look) AS passed;

-- name: extent_held
SELECT COUNT(*), MAX(item) FROM (
    SELECT h.item FROM holdfast_holds h WHERE h.stage = :stage AND h.item > :after ORDER BY h.item LIMIT :look) AS passed;

-- name: extent_bad
SELECT COUNT(*), MAX(item) FROM (
    SELECT o.item FROM holdfast_outcomes o {by ix_holdfast_outcomes_bad}
    WHERE o.stage = :stage AND o.state = :state AND o.state NOT IN ('done', 'skipped') AND o.item > :after
    ORDER BY o.item LIMIT :look) AS passed;

-- name: extent_group
SELECT COUNT(*), MAX(item) FROM (
    SELECT {group_item} AS item FROM {of_group} WHERE {group} = :group AND {group_item} > :after
    ORDER BY {group_item} LIMIT :look) AS passed;

-- The next item, from :first to :last, at which something has a time from :since on and before :until. Every time that a page shows
-- is in one of these columns.

-- name: next_updated
SELECT i.id FROM holdfast_items i
WHERE i.id >= :first AND i.id <= :last AND i.updated_at >= :since AND i.updated_at < :until ORDER BY i.id LIMIT 1;

-- name: next_ended
SELECT o.item FROM holdfast_outcomes o
WHERE o.item >= :first AND o.item <= :last AND o.ended_at >= :since AND o.ended_at < :until ORDER BY o.item LIMIT 1;

-- name: next_held
SELECT h.item FROM holdfast_holds h {by ix_holdfast_holds_item}
WHERE h.item >= :first AND h.item <= :last AND h.since >= :since AND h.since < :until ORDER BY h.item LIMIT 1;

-- name: next_leased
SELECT l.item FROM holdfast_leases l
WHERE l.item >= :first AND l.item <= :last AND l.since >= :since AND l.since < :until ORDER BY l.item + 0 LIMIT 1;
