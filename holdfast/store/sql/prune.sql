-- name: delete_events
DELETE FROM holdfast_events WHERE id IN (
    SELECT id FROM holdfast_events WHERE at < :before AND event <> 'cost' ORDER BY id LIMIT :most) RETURNING id;

-- name: count_old_events
SELECT COUNT(*) FROM holdfast_events WHERE at < :before AND event <> 'cost';

-- name: ended_items
SELECT i.id FROM holdfast_items i JOIN holdfast_item_status x ON x.item = i.id
WHERE i.pipeline = :pipeline AND i.updated_at < :before AND x.status IN ('done', 'failed', 'cancelled')
  AND NOT EXISTS (SELECT 1 FROM holdfast_outcomes o WHERE o.item = i.id AND o.ended_at >= :before)
  AND NOT EXISTS (SELECT 1 FROM holdfast_children c WHERE c.child = i.id)
ORDER BY i.id LIMIT :most;

-- name: count_ended_items
-- At once, not in chunks: each chunk of ended_items scans all items of the pipeline again.
SELECT COUNT(*) FROM holdfast_items i JOIN holdfast_item_status x ON x.item = i.id
WHERE i.pipeline = :pipeline AND i.updated_at < :before AND x.status IN ('done', 'failed', 'cancelled')
  AND NOT EXISTS (SELECT 1 FROM holdfast_outcomes o WHERE o.item = i.id AND o.ended_at >= :before)
  AND NOT EXISTS (SELECT 1 FROM holdfast_children c WHERE c.child = i.id);

-- name: outcome_counts_of
SELECT stage, state, version, type, COUNT(*) FROM holdfast_outcomes WHERE item {in items} GROUP BY stage, state, version, type;

-- name: delete_answers_of
-- The answer of a call belongs to the item; its cost does not.
UPDATE holdfast_calls SET value = NULL, reason = NULL WHERE item {in items} AND (value IS NOT NULL OR reason IS NOT NULL);

-- name: delete_children_of
DELETE FROM holdfast_children WHERE parent {in items};

-- name: delete_outcomes_of
DELETE FROM holdfast_outcomes WHERE item {in items};

-- name: delete_events_of
DELETE FROM holdfast_events WHERE item {in items} AND event <> 'cost';

-- name: delete_items
DELETE FROM holdfast_items WHERE id {in items};

-- name: delete_parents_of
DELETE FROM holdfast_children WHERE child {in items};

-- name: children_of_only
-- Children of these items that have no other parent.
SELECT DISTINCT c.child FROM holdfast_children c WHERE c.parent {in items}
  AND NOT EXISTS (SELECT 1 FROM holdfast_children o WHERE o.child = c.child AND NOT (o.parent {in items}));

-- name: items_by_pipeline
SELECT pipeline, COUNT(*) FROM holdfast_items WHERE id {in items} GROUP BY pipeline;

-- name: strip_calls
-- Keeps amounts, and removes what they were spent on.
UPDATE holdfast_calls SET facts = '{}', value = NULL, reason = NULL WHERE item {in items};
