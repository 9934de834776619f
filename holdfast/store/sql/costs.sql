-- name: sum_costs
-- Days are UTC days, counted from 1970.
SELECT p.name AS pipeline, s.name AS stage, i.key AS item, e.resource, CAST(e.at / 86400000000 AS BIGINT) AS day,
       CAST(SUM(e.amount) AS BIGINT) AS amount, COUNT(*) AS payments
FROM holdfast_events e LEFT JOIN holdfast_pipelines p ON p.id = e.pipeline
LEFT JOIN holdfast_stages s ON s.id = e.stage LEFT JOIN holdfast_items i ON i.id = e.item
WHERE e.event = 'cost' AND (CAST(:since AS BIGINT) IS NULL OR e.at >= :since)
  AND (CAST(:pipeline AS TEXT) IS NULL OR p.name = :pipeline)
GROUP BY p.name, s.name, i.key, e.resource, CAST(e.at / 86400000000 AS BIGINT);
