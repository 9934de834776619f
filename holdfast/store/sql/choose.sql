-- What a person chooses by filter. Every statement takes the next stretch in order of item and stage.

-- name: choose_outcomes
-- Those that are open again already are not meant.
SELECT o.item, o.stage, o.state FROM holdfast_outcomes o JOIN holdfast_items i ON i.id = o.item
WHERE o.stage {in stages} AND o.state {in states text} AND (o.item > :item OR (o.item = :item AND o.stage > :stage))
  AND {fits i.key keys}
  AND (CAST(:error AS TEXT) IS NULL OR {position}(o.error, :error) > 0)
  AND (CAST(:before AS BIGINT) IS NULL OR o.ended_at < :before)
  AND NOT EXISTS (SELECT 1 FROM holdfast_waiting w WHERE w.stage = o.stage AND w.priority = i.priority AND w.item = o.item)
  AND NOT EXISTS (SELECT 1 FROM holdfast_delayed d WHERE d.item = o.item AND d.stage = o.stage)
  AND NOT EXISTS (SELECT 1 FROM holdfast_leases l WHERE l.item = o.item AND l.stage = o.stage)
  AND NOT EXISTS (SELECT 1 FROM holdfast_holds h WHERE h.stage = o.stage AND h.item = o.item)
ORDER BY o.item, o.stage LIMIT :most;

-- name: lock_outcomes
-- Nobody else may reopen or replace these outcomes until this transaction ends.
SELECT o.item, o.stage, o.state FROM holdfast_outcomes o
WHERE o.stage = :stage AND o.item {in items} ORDER BY o.item {for_update};

-- name: choose_delayed
SELECT d.item, d.stage, d.attempts, d.rerun FROM holdfast_delayed d JOIN holdfast_items i ON i.id = d.item
WHERE d.stage {in stages} AND (d.item > :item OR (d.item = :item AND d.stage > :stage))
  AND {fits i.key keys}
  AND (CAST(:error AS TEXT) IS NULL OR {position}(d.error, :error) > 0)
  AND (CAST(:before AS BIGINT) IS NULL OR i.updated_at < :before)
ORDER BY d.item, d.stage LIMIT :most;

-- name: choose_waiting
SELECT w.item, w.stage, w.attempts, w.rerun FROM holdfast_waiting w JOIN holdfast_items i ON i.id = w.item
WHERE w.stage {in stages} AND (w.item > :item OR (w.item = :item AND w.stage > :stage))
  AND {fits i.key keys}
  AND CAST(:error AS TEXT) IS NULL
  AND (CAST(:before AS BIGINT) IS NULL OR i.updated_at < :before)
ORDER BY w.item, w.stage LIMIT :most;

-- name: choose_leased
SELECT l.item, l.stage, l.attempt, l.rerun FROM holdfast_leases l JOIN holdfast_items i ON i.id = l.item
WHERE l.stage {in stages} AND (l.item > :item OR (l.item = :item AND l.stage > :stage))
  AND {fits i.key keys}
  AND CAST(:error AS TEXT) IS NULL
  AND (CAST(:before AS BIGINT) IS NULL OR l.since < :before)
ORDER BY l.item, l.stage LIMIT :most;

-- name: choose_held
SELECT h.item, h.stage, h.attempts, h.rerun FROM holdfast_holds h JOIN holdfast_items i ON i.id = h.item
WHERE h.stage {in stages} AND (h.item > :item OR (h.item = :item AND h.stage > :stage))
  AND {fits i.key keys}
  AND (CAST(:error AS TEXT) IS NULL OR {position}(h.reason, :error) > 0)
  AND (CAST(:before AS BIGINT) IS NULL OR h.since < :before)
ORDER BY h.item, h.stage LIMIT :most;

-- name: take_held
DELETE FROM holdfast_holds WHERE stage = :stage AND item {in items} RETURNING item, attempts, alone, rerun;

-- name: take_held_for_version
DELETE FROM holdfast_holds WHERE ctid = ANY(ARRAY(
    SELECT ctid FROM holdfast_holds WHERE stage = :stage AND kind = 'version' ORDER BY item LIMIT :most FOR UPDATE SKIP LOCKED))
RETURNING item, attempts, alone, rerun;

-- name: take_delayed
DELETE FROM holdfast_delayed WHERE stage = :stage AND item {in items} RETURNING item, attempts, alone, rerun;

-- name: take_waiting
DELETE FROM holdfast_waiting WHERE stage = :stage AND (priority, item) IN (SELECT i.priority, i.id FROM holdfast_items i WHERE i.id {in items})
RETURNING item, attempts, alone, rerun;

-- name: kind_of_hold
SELECT kind FROM holdfast_holds WHERE stage = :stage AND item = :item;

-- name: reasons_of_holds
SELECT DISTINCT kind, reason FROM (
    SELECT kind, reason FROM holdfast_holds WHERE stage = :stage ORDER BY item LIMIT :most) AS seen ORDER BY kind, reason;
