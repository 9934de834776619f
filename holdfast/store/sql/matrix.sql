-- How many items of a pipeline are in which state at which stage, by stretches of :width numbers from :first on. Read in pieces: what
-- is kept by item between two numbers, what waits from one place of a queue to another.

-- name: matrix_bounds
SELECT MIN(id), MAX(id) FROM holdfast_items WHERE pipeline = :pipeline;

-- name: matrix_next_item
SELECT MIN(id) FROM holdfast_items WHERE id > :after;

-- name: matrix_items
SELECT (i.id - :first) / :width AS stretch, COUNT(*) FROM holdfast_items i
WHERE i.pipeline + 0 = :pipeline AND i.id > :after AND i.id <= :until GROUP BY 1;

-- name: matrix_outcomes
SELECT (o.item - :first) / :width AS stretch, o.stage, o.state, COUNT(*) FROM holdfast_outcomes o
WHERE o.item > :after AND o.item <= :until AND o.stage {in stages} GROUP BY 1, 2, 3;

-- name: matrix_delayed
-- With the state of the outcome that stays readable while the stage is open again.
SELECT (d.item - :first) / :width AS stretch, d.stage,
    CASE WHEN d.rerun <> 0 THEN (SELECT o.state FROM holdfast_outcomes o WHERE o.item = d.item AND o.stage = d.stage) END AS before,
    COUNT(*)
FROM holdfast_delayed d WHERE d.item > :after AND d.item <= :until AND d.stage {in stages} GROUP BY 1, 2, 3;

-- name: matrix_held
SELECT (h.item - :first) / :width AS stretch, h.stage,
    CASE WHEN h.rerun <> 0 THEN (SELECT o.state FROM holdfast_outcomes o WHERE o.item = h.item AND o.stage = h.stage) END AS before,
    COUNT(*)
FROM holdfast_holds h WHERE h.item > :after AND h.item <= :until AND h.stage {in stages} GROUP BY 1, 2, 3;

-- name: matrix_leased
SELECT (l.item - :first) / :width AS stretch, l.stage,
    CASE WHEN l.rerun <> 0 THEN (SELECT o.state FROM holdfast_outcomes o WHERE o.item = l.item AND o.stage = l.stage) END AS before,
    COUNT(*)
FROM holdfast_leases l WHERE l.stage {in stages} GROUP BY 1, 2, 3;

-- name: matrix_next_waiting
-- Where a piece of a queue ends.
SELECT w.priority, w.item FROM holdfast_waiting w
WHERE w.stage = :stage AND (w.priority, w.item) > (:priority, :item) ORDER BY w.priority, w.item LIMIT 1 OFFSET :most;

-- name: matrix_waiting
SELECT (w.item - :first) / :width AS stretch,
    CASE WHEN w.rerun <> 0 THEN (SELECT o.state FROM holdfast_outcomes o WHERE o.item = w.item AND o.stage = w.stage) END AS before,
    COUNT(*)
FROM holdfast_waiting w
WHERE w.stage = :stage AND (w.priority, w.item) > (:priority, :item) AND (w.priority, w.item) <= (:last_priority, :last_item)
GROUP BY 1, 2;
