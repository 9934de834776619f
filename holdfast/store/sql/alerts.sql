-- Alert rules, and their queued notifications.

-- name: newest_events
SELECT id, at FROM holdfast_events ORDER BY id DESC LIMIT :most;

-- name: add_alerts
INSERT INTO holdfast_alerts (name, looked_until) SELECT r.name, :newest FROM {rows name text} WHERE true
ON CONFLICT (name) DO NOTHING;

-- name: declared_alerts
-- Rules of these names, and those that programs with these pipelines have had.
SELECT name, owner, active, told_at, quiet_until, says FROM holdfast_alerts
WHERE name {in names text} OR (active = 1 AND owner {in pipelines text});

-- name: declare_alerts
INSERT INTO holdfast_alerts (name, looked_until, owner, quiet_until, says)
SELECT r.name, :newest, :owner, r.quiet_until, r.says FROM {rows name text, quiet_until bigint, says text} WHERE true
ON CONFLICT (name) DO UPDATE SET owner = excluded.owner, quiet_until = excluded.quiet_until, says = excluded.says, active = 1;

-- name: retire_alerts
UPDATE holdfast_alerts SET active = 0 WHERE name {in names text};

-- name: look_at_alerts
SELECT name, looked_until, told_at FROM holdfast_alerts WHERE name {in names text};

-- name: hold_alert
-- One worker at a time advances a rule; the others skip it.
SELECT looked_until, told_at FROM holdfast_alerts WHERE name = :name {skip_locked};

-- name: move_alert
UPDATE holdfast_alerts SET looked_until = :until, told_at = :told_at, quiet_until = :quiet_until, active = 1 WHERE name = :name;

-- name: new_matches
-- New events that may match a rule. Their text is returned only if the rule needs it. One at a time that no calendar knows is
-- passed over: something else has written it.
SELECT e.id, e.at, CASE WHEN CAST(:error AS TEXT) IS NOT NULL THEN e.data END FROM holdfast_events e
LEFT JOIN holdfast_pipelines p ON p.id = e.pipeline LEFT JOIN holdfast_stages s ON s.id = e.stage
WHERE e.id > :after AND e.id <= :until AND e.event {in events text} AND e.at BETWEEN 0 AND :last
  AND (CAST(:pipeline AS TEXT) IS NULL OR p.name = :pipeline) AND (CAST(:stage AS TEXT) IS NULL OR s.name = :stage)
  AND (CAST(:error AS TEXT) IS NULL OR {position}(e.data, :error) > 0)
ORDER BY e.id LIMIT :most;

-- name: old_matches
-- The same before that, of one name: the newest first, as far as they may still count.
SELECT e.id, e.at, CASE WHEN CAST(:error AS TEXT) IS NOT NULL THEN e.data END FROM holdfast_events e
LEFT JOIN holdfast_pipelines p ON p.id = e.pipeline LEFT JOIN holdfast_stages s ON s.id = e.stage
WHERE e.event = :event AND e.at > :since AND e.at <= :last AND e.id <= :until
  AND (CAST(:pipeline AS TEXT) IS NULL OR p.name = :pipeline) AND (CAST(:stage AS TEXT) IS NULL OR s.name = :stage)
  AND (CAST(:error AS TEXT) IS NULL OR {position}(e.data, :error) > 0)
ORDER BY e.at DESC LIMIT :most;

-- name: events_of_alert
SELECT e.at, e.event, p.name AS pipeline, s.name AS stage, i.key AS item, e.data FROM holdfast_events e
LEFT JOIN holdfast_pipelines p ON p.id = e.pipeline LEFT JOIN holdfast_stages s ON s.id = e.stage
LEFT JOIN holdfast_items i ON i.id = e.item WHERE e.id {in events} ORDER BY e.id;

-- name: add_deliveries
INSERT INTO holdfast_deliveries (alert, body, attempts, due_at)
SELECT r.alert, r.body, 0, :now FROM {rows alert text, body text};

-- name: any_delivery
-- Due, or so far ahead that the clock must have been changed; and not claimed by a live worker.
SELECT 1 FROM holdfast_deliveries d WHERE d.alert {in alerts text} AND (d.due_at <= :now OR d.due_at > :beyond)
  AND (d.worker IS NULL OR NOT EXISTS (SELECT 1 FROM holdfast_workers w WHERE w.id = d.worker)) LIMIT 1;

-- name: take_deliveries
-- A count of attempts that cannot be true was written by something else: the notification gets one more.
WITH chosen AS MATERIALIZED (
    SELECT d.id FROM holdfast_deliveries d WHERE d.alert {in alerts text} AND (d.due_at <= :now OR d.due_at > :beyond)
      AND (d.worker IS NULL OR NOT EXISTS (SELECT 1 FROM holdfast_workers w WHERE w.id = d.worker))
    ORDER BY d.id LIMIT :most {skip_locked})
UPDATE holdfast_deliveries SET worker = :worker, attempts = CASE WHEN attempts BETWEEN 0 AND 1000 THEN attempts + 1 ELSE 1000 END WHERE id IN (SELECT id FROM chosen)
RETURNING id, alert, body, attempts;

-- name: end_delivery
DELETE FROM holdfast_deliveries WHERE id = :id AND worker = :worker RETURNING id;

-- name: delay_delivery
UPDATE holdfast_deliveries SET worker = NULL, due_at = :due_at, error = :error WHERE id = :id AND worker = :worker
RETURNING id;

-- name: list_alerts
SELECT a.name, a.says, a.active, a.owner AS pipeline, a.told_at, e.at AS looked_at
FROM holdfast_alerts a LEFT JOIN holdfast_events e ON e.id = a.looked_until
ORDER BY a.name;

-- name: queued_deliveries
SELECT d.alert, d.body, d.attempts, d.due_at, d.error,
       CASE WHEN EXISTS (SELECT 1 FROM holdfast_workers w WHERE w.id = d.worker) THEN 1 ELSE 0 END AS held
FROM holdfast_deliveries d {by ix_holdfast_deliveries_due} ORDER BY d.due_at, d.id LIMIT :most;
