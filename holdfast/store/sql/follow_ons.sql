-- Follow-on items and children.

-- name: open_items
-- The items with open work: a stage waiting, delayed, in progress or on hold.
SELECT i.id FROM holdfast_items i WHERE i.id {in items} AND (
    EXISTS (SELECT 1 FROM holdfast_stages s JOIN holdfast_waiting w ON w.stage = s.id AND w.priority = i.priority AND w.item = i.id
            WHERE s.pipeline = i.pipeline)
    OR EXISTS (SELECT 1 FROM holdfast_delayed d WHERE d.item = i.id)
    OR EXISTS (SELECT 1 FROM holdfast_leases l WHERE l.item = i.id)
    OR EXISTS (SELECT 1 FROM holdfast_holds h WHERE h.item = i.id));

-- name: between_stages
-- The items in which a stage has not begun although all its predecessors have passed.
SELECT i.id FROM holdfast_items i WHERE i.id {in items}
  AND (SELECT COUNT(*) FROM holdfast_outcomes o WHERE o.item = i.id AND o.stage {in before} AND o.state IN ('done', 'skipped')) = :needed
  AND NOT EXISTS (SELECT 1 FROM holdfast_outcomes o WHERE o.item = i.id AND o.stage = :stage);

-- name: add_children
INSERT INTO holdfast_children (parent, child)
{values parent bigint, child bigint}
ON CONFLICT (parent, child) DO NOTHING;

-- name: parents_of
SELECT DISTINCT c.parent, i.pipeline FROM holdfast_children c JOIN holdfast_items i ON i.id = c.parent WHERE c.child {in items};

-- name: children_of
-- The children of items in one pipeline.
SELECT c.parent, c.child FROM holdfast_children c JOIN holdfast_items i ON i.id = c.child
WHERE c.parent {in items} AND i.pipeline = :pipeline;

-- name: waits_for
-- For items whose stage waits only for children: the children that have children themselves.
SELECT c.parent, c.child FROM holdfast_children c
JOIN holdfast_items i ON i.id = c.parent JOIN holdfast_items k ON k.id = c.child
WHERE c.parent {in items} AND i.pipeline = :pipeline AND k.pipeline = (SELECT p.id FROM holdfast_pipelines p WHERE p.name = :of)
  AND EXISTS (SELECT 1 FROM holdfast_children d WHERE d.parent = c.child)
  AND (SELECT COUNT(*) FROM holdfast_outcomes o WHERE o.item = i.id AND o.stage {in before} AND o.state IN ('done', 'skipped')) = :needed
  AND NOT EXISTS (SELECT 1 FROM holdfast_outcomes o WHERE o.item = i.id AND o.stage = :stage)
  AND NOT EXISTS (SELECT 1 FROM holdfast_waiting w WHERE w.stage = :stage AND w.priority = i.priority AND w.item = i.id)
  AND NOT EXISTS (SELECT 1 FROM holdfast_delayed d WHERE d.item = i.id AND d.stage = :stage)
  AND NOT EXISTS (SELECT 1 FROM holdfast_leases l WHERE l.item = i.id AND l.stage = :stage)
  AND NOT EXISTS (SELECT 1 FROM holdfast_holds h WHERE h.stage = :stage AND h.item = i.id);

-- name: parents_after
SELECT DISTINCT parent FROM holdfast_children WHERE parent > :after ORDER BY parent LIMIT :most;

-- name: count_children
SELECT x.status, COUNT(*) FROM holdfast_children c JOIN holdfast_item_status x ON x.item = c.child
JOIN holdfast_items i ON i.id = c.child JOIN holdfast_pipelines p ON p.id = i.pipeline
WHERE c.parent = :item AND p.name = :pipeline GROUP BY x.status;

-- name: read_reruns
SELECT item, led_by FROM holdfast_chains WHERE item {in items};

-- name: save_reruns
INSERT INTO holdfast_chains (item, led_by)
{values item bigint, led_by text}
ON CONFLICT (item) DO UPDATE SET led_by = excluded.led_by;

-- name: forget_reruns
DELETE FROM holdfast_chains WHERE item {in items};

-- name: count_reruns
-- Counts reruns per hour, which begins with the first one; a count that began before :after starts over.
UPDATE holdfast_stages SET
    reruns = CASE WHEN reruns_since > :after AND reruns_since <= :now THEN reruns + :n ELSE :n END,
    reruns_since = CASE WHEN reruns_since > :after AND reruns_since <= :now THEN reruns_since ELSE :now END
WHERE id = :stage RETURNING reruns;

-- name: names_of
SELECT i.id, p.name, i.key FROM holdfast_items i JOIN holdfast_pipelines p ON p.id = i.pipeline WHERE i.id {in items};
