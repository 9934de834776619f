-- name: add_events
INSERT INTO holdfast_events (at, event, pipeline, item, stage, amount, resource, data)
{values at bigint, event text, pipeline bigint, item bigint, stage bigint, amount bigint, resource text, data text};

-- name: events_at
SELECT e.at, e.data FROM holdfast_events e {by ix_holdfast_events_kind} WHERE e.event = :event AND e.at {in times};

-- name: newest_of_resources
-- By resource: when the newest of these events was, among the last so many of that name.
SELECT x.resource, MAX(x.at) FROM (
    SELECT e.resource, e.at, e.data FROM holdfast_events e {by ix_holdfast_events_kind}
    WHERE e.event = :event ORDER BY e.at DESC LIMIT :most) AS x
WHERE x.resource IS NOT NULL AND x.data LIKE :like GROUP BY x.resource;

-- name: add_counts
INSERT INTO holdfast_counts (slot, stage, state, bucket, n, total_us, most_us)
{values slot bigint, stage bigint, state text, bucket smallint, n bigint, total_us bigint, most_us bigint}
ON CONFLICT (slot, stage, state, bucket) DO UPDATE SET n = {add holdfast_counts.n},
    total_us = {add holdfast_counts.total_us},
    most_us = CASE WHEN excluded.most_us > holdfast_counts.most_us THEN excluded.most_us ELSE holdfast_counts.most_us END;

-- name: add_versions
INSERT INTO holdfast_versions (slot, stage, version, type, n)
{values slot bigint, stage bigint, version text, type text, n bigint}
ON CONFLICT (slot, stage, version, type) DO UPDATE SET n = {add holdfast_versions.n};

-- name: forget_versions
-- Versions without results.
DELETE FROM holdfast_versions WHERE slot = 0 AND n = 0;

-- name: forget_commits
DELETE FROM holdfast_commits WHERE at < :before;

-- name: read_events
SELECT e.id, e.at, e.event, p.name AS pipeline, i.key AS item, s.name AS stage, e.amount, e.resource, e.data
FROM {list events} LEFT JOIN holdfast_events e ON e.id = value LEFT JOIN holdfast_pipelines p ON p.id = e.pipeline
LEFT JOIN holdfast_items i ON i.id = e.item LEFT JOIN holdfast_stages s ON s.id = e.stage
ORDER BY value;

-- name: walk_events
-- The numbers of events from :after to :until, oldest first.
SELECT e.id FROM holdfast_events e
WHERE e.id > :after AND e.id <= :until AND (CAST(:event AS TEXT) IS NULL OR e.event = :event) AND e.at >= :since
  AND (CAST(:pipeline AS BIGINT) IS NULL OR e.pipeline = :pipeline)
ORDER BY e.id LIMIT :most;

-- name: walk_events_back
SELECT e.id FROM holdfast_events e
WHERE e.id > :after AND e.id <= :until AND (CAST(:event AS TEXT) IS NULL OR e.event = :event) AND e.at >= :since
  AND (CAST(:pipeline AS BIGINT) IS NULL OR e.pipeline = :pipeline)
ORDER BY e.id DESC LIMIT :most;

-- name: item_events
SELECT e.id FROM holdfast_events e {by ix_holdfast_events_item}
WHERE e.item = :item AND e.id > :after AND (CAST(:event AS TEXT) IS NULL OR e.event = :event) AND e.at >= :since
  AND (CAST(:pipeline AS BIGINT) IS NULL OR e.pipeline = :pipeline)
ORDER BY e.id LIMIT :most;

-- name: item_events_back
SELECT e.id FROM holdfast_events e {by ix_holdfast_events_item}
WHERE e.item = :item AND e.id > :after AND (CAST(:event AS TEXT) IS NULL OR e.event = :event) AND e.at >= :since
  AND (CAST(:pipeline AS BIGINT) IS NULL OR e.pipeline = :pipeline)
ORDER BY e.id DESC LIMIT :most;

-- name: event_kinds
-- The distinct names of events, with one index lookup for each.
WITH RECURSIVE found(event) AS (
    SELECT MIN(e.event) FROM holdfast_events e
    UNION ALL
    SELECT (SELECT MIN(e.event) FROM holdfast_events e WHERE e.event > found.event) FROM found WHERE found.event IS NOT NULL)
SELECT event FROM found WHERE event IS NOT NULL;

-- name: search_events
-- By the index of names and times. Its order is not that of the numbers, since a clock may have been set; the sum keeps the
-- planner from assuming so.
SELECT e.id FROM holdfast_events e {by ix_holdfast_events_kind}
WHERE e.event {in events text} AND e.at >= :since AND e.id + 0 > :after
  AND (CAST(:pipeline AS BIGINT) IS NULL OR e.pipeline = :pipeline)
ORDER BY e.id + 0 LIMIT :most;

-- name: search_events_back
SELECT e.id FROM holdfast_events e {by ix_holdfast_events_kind}
WHERE e.event {in events text} AND e.at >= :since AND e.id + 0 > :after
  AND (CAST(:pipeline AS BIGINT) IS NULL OR e.pipeline = :pipeline)
ORDER BY e.id + 0 DESC LIMIT :most;

-- name: latest_events
-- Events of one name, by time; reads no more than needed.
SELECT e.id FROM holdfast_events e {by ix_holdfast_events_kind}
WHERE e.event = :event AND e.at >= :since AND (CAST(:pipeline AS BIGINT) IS NULL OR e.pipeline = :pipeline)
ORDER BY e.at DESC LIMIT :most;

-- name: count_events
-- Events of one name, up to :most.
SELECT COUNT(*) FROM (
    SELECT 1 FROM holdfast_events e {by ix_holdfast_events_kind}
    WHERE e.event = :event AND e.at >= :since AND (CAST(:pipeline AS BIGINT) IS NULL OR e.pipeline = :pipeline)
    LIMIT :most) counted;

-- name: slice_of_log
-- The next events of the log, newest first, each with whether it is wanted: what is read is bounded, however few are wanted.
SELECT e.id, e.at,
       CASE WHEN e.at >= :since AND (CAST(:pipeline AS BIGINT) IS NULL OR e.pipeline = :pipeline)
                 AND (CAST(:any_stage AS BIGINT) = 1 OR e.stage {in stages}) THEN 1 ELSE 0 END
FROM holdfast_events e WHERE e.id < :before ORDER BY e.id DESC LIMIT :most;

-- name: slice_of_item
SELECT e.id, e.at,
       CASE WHEN e.at >= :since AND (CAST(:event AS TEXT) IS NULL OR e.event = :event)
                 AND (CAST(:pipeline AS BIGINT) IS NULL OR e.pipeline = :pipeline)
                 AND (CAST(:any_stage AS BIGINT) = 1 OR e.stage {in stages}) THEN 1 ELSE 0 END
FROM holdfast_events e {by ix_holdfast_events_item} WHERE e.item = :item AND e.id < :before ORDER BY e.id DESC LIMIT :most;

-- name: slice_of_kind
-- Of one name, by time.
SELECT e.id, e.at,
       CASE WHEN (CAST(:pipeline AS BIGINT) IS NULL OR e.pipeline = :pipeline)
                 AND (CAST(:any_stage AS BIGINT) = 1 OR e.stage {in stages}) THEN 1 ELSE 0 END
FROM holdfast_events e {by ix_holdfast_events_kind}
WHERE e.event = :event AND e.at >= :since AND e.at <= :until AND (e.at < :until OR e.id < :before)
ORDER BY e.at DESC, e.id DESC LIMIT :most;

-- name: slice_of_acts
-- The same of what people have done: not the calls that an action has resolved, which tells of itself, and not by a worker, which
-- names an item.
SELECT e.id, e.at,
       CASE WHEN (e.event <> 'resolved' OR {position}(e.data, '"action":') = 0) AND (e.event <> 'paused' OR e.item IS NULL)
                 AND (CAST(:person AS TEXT) IS NULL OR {position}(e.data, :person) > 0) THEN 1 ELSE 0 END
FROM holdfast_events e {by ix_holdfast_events_kind}
WHERE e.event = :event AND e.at >= :since AND e.at <= :until AND (e.at < :until OR e.id < :before)
ORDER BY e.at DESC, e.id DESC LIMIT :most;
