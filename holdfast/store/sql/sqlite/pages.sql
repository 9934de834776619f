-- Which finished stages belong to an error group is in a table here, not in an index (migration 5).

-- name: page_group
SELECT o.item, o.stage, o.state, o.attempts, CAST(NULL AS BIGINT) AS next_attempt_at, o.error, o.ended_at AS updated_at
FROM holdfast_grouped g CROSS JOIN holdfast_outcomes o ON o.item = g.item AND o.stage = g.stage
WHERE g.error_group = :group AND g.item > :after AND g.stage {in stages} AND o.state {in states text}
  AND (CAST(:error AS TEXT) IS NULL OR {position}(o.error, :error) > 0)
  AND (SELECT i.key FROM holdfast_items i WHERE i.id = o.item) {glob} :key
  AND (SELECT COUNT(*) FROM holdfast_waiting w WHERE w.stage = o.stage AND w.item = o.item
       AND w.priority = (SELECT i.priority FROM holdfast_items i WHERE i.id = o.item)) = 0
  AND (SELECT COUNT(*) FROM holdfast_delayed d WHERE d.item = o.item AND d.stage = o.stage) = 0
  AND (SELECT COUNT(*) FROM holdfast_holds h WHERE h.stage = o.stage AND h.item = o.item) = 0
  AND (o.item, o.stage) NOT IN (SELECT l.item, l.stage FROM holdfast_leases l)
ORDER BY g.item LIMIT :most;
