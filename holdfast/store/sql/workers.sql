-- name: add_worker
INSERT INTO holdfast_workers (id, name, host, process, clock, started_at, beat_at, alive_until, lease_us, stages, versions, facts)
VALUES (:id, :name, :host, :process, :clock, :now, :now, :alive_until, :lease_us, :stages, :versions, :facts);

-- name: beat
-- No row: this worker was declared dead, and has lost its leases.
UPDATE holdfast_workers SET beat_at = :now, alive_until = :alive_until, facts = :facts WHERE id = :id RETURNING id;

-- name: remove_worker
DELETE FROM holdfast_workers WHERE id = :id;

-- name: neighbours
SELECT id, process FROM holdfast_workers WHERE host = :host AND id <> :id;

-- name: newest_time
SELECT COALESCE(MAX(x.at), 0) FROM (
    SELECT MAX(w.beat_at) AS at FROM holdfast_workers w
    UNION ALL SELECT e.at FROM holdfast_events e WHERE e.id = (SELECT MAX(id) FROM holdfast_events)) AS x;

-- name: read_workers
SELECT id, name, host, process, clock, started_at, beat_at, alive_until, lease_us, stages, versions, facts
FROM holdfast_workers ORDER BY started_at, id;

-- name: living_workers
SELECT name, stages, versions FROM holdfast_workers WHERE alive_until > :now AND clock = :clock ORDER BY started_at, id;
