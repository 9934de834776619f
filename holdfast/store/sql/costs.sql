-- name: sum_costs
-- From one time to another: sums by pipeline and stage, and by what else is asked for. Days are UTC days, counted from 1970.
SELECT e.pipeline, e.stage, CASE WHEN CAST(:items AS INTEGER) = 1 THEN e.item END AS item,
       CASE WHEN CAST(:resources AS INTEGER) = 1 THEN e.resource END AS resource,
       CASE WHEN CAST(:days AS INTEGER) = 1 THEN CAST(e.at / 86400000000 AS BIGINT) END AS day,
       CAST(SUM(e.amount) AS BIGINT) AS amount, COUNT(*) AS payments
FROM holdfast_events e {by ix_holdfast_events_kind}
WHERE e.event = 'cost' AND e.at >= :since AND e.at < :until AND (CAST(:pipeline AS BIGINT) IS NULL OR e.pipeline = :pipeline)
GROUP BY 1, 2, 3, 4, 5;

-- name: costs_until
-- The time of the payment that comes after the next :most.
SELECT e.at FROM holdfast_events e {by ix_holdfast_events_kind}
WHERE e.event = 'cost' AND e.at >= :since ORDER BY e.at LIMIT 1 OFFSET :most;
