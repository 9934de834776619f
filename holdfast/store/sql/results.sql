-- Results in pages, for export. Each row is whole, except that values over :long characters are read one by one. Stages in :anew
-- are read completely, of the others what is unseen: written since an earlier export.

-- name: walk_results
SELECT o.item, o.stage, i.key, o.state, o.attempts, o.version, o.lease, o.started_at, o.ended_at, o.cost, o.error,
       CASE WHEN :with_data = 1 AND length(i.data) <= :long THEN i.data END,
       CASE WHEN :with_result = 1 AND length(o.result) <= :long THEN o.result END,
       CASE WHEN (:with_data = 1 AND length(i.data) > :long) OR (:with_result = 1 AND length(o.result) > :long) THEN 1 ELSE 0 END
FROM holdfast_outcomes o CROSS JOIN holdfast_items i
WHERE (o.item, o.stage) > (:item, :stage) AND o.stage {in stages} AND o.state {in states text}
  AND (CAST(:before AS BIGINT) IS NULL OR o.ended_at < :before)
  AND (o.stage {in anew} OR {unseen})
  AND i.id = o.item AND (:any_key = 1 OR {fits i.key keys})
  AND (CAST(:error AS TEXT) IS NULL OR {position}(o.error, :error) > 0)
ORDER BY o.item, o.stage LIMIT :most;

-- name: walk_bad_results
-- What did not pass, in one state of one stage: there is an index for that.
SELECT o.item, o.stage, i.key, o.state, o.attempts, o.version, o.lease, o.started_at, o.ended_at, o.cost, o.error,
       CASE WHEN :with_data = 1 AND length(i.data) <= :long THEN i.data END,
       CASE WHEN :with_result = 1 AND length(o.result) <= :long THEN o.result END,
       CASE WHEN (:with_data = 1 AND length(i.data) > :long) OR (:with_result = 1 AND length(o.result) > :long) THEN 1 ELSE 0 END
FROM holdfast_outcomes o {by ix_holdfast_outcomes_bad} CROSS JOIN holdfast_items i
WHERE o.stage = :stage AND o.state = :state AND o.state NOT IN ('done', 'skipped') AND o.item > :item
  AND (CAST(:before AS BIGINT) IS NULL OR o.ended_at < :before)
  AND (o.stage {in anew} OR {unseen})
  AND i.id = o.item AND (:any_key = 1 OR {fits i.key keys})
  AND (CAST(:error AS TEXT) IS NULL OR {position}(o.error, :error) > 0)
  AND (CAST(:group AS TEXT) IS NULL OR o.error_group = :group)
ORDER BY o.item LIMIT :most;

-- name: results_of_items
-- Those of a few items.
SELECT o.item, o.stage, i.key, o.state, o.attempts, o.version, o.lease, o.started_at, o.ended_at, o.cost, o.error,
       CASE WHEN :with_data = 1 AND length(i.data) <= :long THEN i.data END,
       CASE WHEN :with_result = 1 AND length(o.result) <= :long THEN o.result END,
       CASE WHEN (:with_data = 1 AND length(i.data) > :long) OR (:with_result = 1 AND length(o.result) > :long) THEN 1 ELSE 0 END
FROM holdfast_outcomes o CROSS JOIN holdfast_items i
WHERE o.item {in items} AND o.stage {in stages} AND o.state {in states text}
  AND (CAST(:before AS BIGINT) IS NULL OR o.ended_at < :before)
  AND (o.stage {in anew} OR {unseen})
  AND i.id = o.item
  AND (CAST(:error AS TEXT) IS NULL OR {position}(o.error, :error) > 0)
  AND (CAST(:group AS TEXT) IS NULL OR o.error_group = :group);

-- name: find_witnesses
SELECT o.item, o.stage, COALESCE(o.lease, 0), o.ended_at FROM holdfast_outcomes o WHERE o.item {in items};

-- name: newest_event
SELECT id, at FROM holdfast_events ORDER BY id DESC LIMIT 1;

-- name: time_of_event
SELECT at FROM holdfast_events WHERE id = :id;
