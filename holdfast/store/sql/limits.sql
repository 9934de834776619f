-- Resources: limits, use, and pauses.

-- name: read_resources
SELECT id, name, spec, tuned FROM holdfast_resources ORDER BY name;

-- name: add_resource
INSERT INTO holdfast_resources (name, spec, updated_at) VALUES (:name, :spec, :now) ON CONFLICT (name) DO NOTHING;

-- name: change_resource
-- Ends a stop by the budget: the next claim checks the budget again.
UPDATE holdfast_resources SET spec = :spec, tuned = :tuned, updated_at = :now,
    reason = CASE WHEN paused = 2 THEN NULL ELSE reason END, retry_after = CASE WHEN paused = 2 THEN NULL ELSE retry_after END,
    paused = CASE WHEN paused = 2 THEN 0 ELSE paused END
WHERE name = :name;

-- name: lock_gates
-- Locks resources while deciding what may begin. In order, so that two transactions never deadlock.
SELECT id, pace, paced_at, cool_until, paused, reason, retry_after, failures, sample, sample_failed, open_until, probe, votes_from
FROM holdfast_resources WHERE id {in ids} ORDER BY id {for_update};

-- name: read_gates
SELECT id, pace, paced_at, cool_until, paused, reason, retry_after, failures, sample, sample_failed, open_until, probe, votes_from
FROM holdfast_resources WHERE id {in ids} ORDER BY id;

-- name: save_gates
UPDATE holdfast_resources SET pace = r.pace, paced_at = r.paced_at, cool_until = r.cool_until, paused = r.paused,
    reason = r.reason, retry_after = r.retry_after, failures = r.failures, sample = r.sample,
    sample_failed = r.sample_failed, open_until = r.open_until, probe = r.probe, votes_from = r.votes_from, updated_at = :now
FROM {rows id bigint, pace int, paced_at bigint, cool_until bigint, paused smallint, reason text, retry_after bigint, failures int, sample int, sample_failed int, open_until bigint, probe bigint, votes_from bigint}
WHERE holdfast_resources.id = r.id;

-- name: read_buckets
SELECT resource, unit, used_until FROM holdfast_buckets WHERE resource {in ids};

-- name: save_buckets
INSERT INTO holdfast_buckets (resource, unit, used_until)
{values resource bigint, unit text, used_until bigint}
ON CONFLICT (resource, unit) DO UPDATE SET used_until = excluded.used_until;

-- name: empty_buckets
DELETE FROM holdfast_buckets WHERE resource = :resource;

-- name: count_slots
-- How many leases hold a slot: counted, not stored, so that none can leak.
SELECT stage, COUNT(*) FROM holdfast_leases WHERE stage {in stages} GROUP BY stage;

-- name: read_reserved
SELECT r.resource, {sum r.amount} FROM holdfast_reservations r JOIN holdfast_leases l ON l.id = r.lease
WHERE r.resource {in ids} GROUP BY r.resource;

-- name: reserve
INSERT INTO holdfast_reservations (lease, resource, amount)
{values lease bigint, resource bigint, amount bigint}
ON CONFLICT (lease, resource) DO UPDATE SET amount = excluded.amount;

-- name: lower_reservations
-- Money that was spent is no longer reserved.
UPDATE holdfast_reservations SET amount = CASE WHEN amount > r.spent THEN amount - r.spent ELSE 0 END
FROM {rows lease bigint, resource bigint, spent bigint}
WHERE holdfast_reservations.lease = r.lease AND holdfast_reservations.resource = r.resource;

-- name: drop_reservations
DELETE FROM holdfast_reservations WHERE lease {in leases};

-- name: reserved_for
SELECT lease, MAX(amount) FROM holdfast_reservations WHERE lease {in leases} GROUP BY lease;

-- name: read_spent
-- Per resource: money charged or in doubt, and what of it is in doubt; in all and on one day. The first is all that workers of
-- the version before read. The difference is not computed here: one absurd row would make it leave its column.
SELECT s.resource, {sum s.amount}, {sum s.in_doubt},
       {sum CASE WHEN s.day = r.day THEN s.amount ELSE 0 END}, {sum CASE WHEN s.day = r.day THEN s.in_doubt ELSE 0 END}
FROM {rows resource bigint, day bigint} JOIN holdfast_spent s ON s.resource = r.resource GROUP BY s.resource;

-- name: all_spent
-- Money charged or in doubt, and what of it is in doubt.
SELECT resource, day, {sum amount} AS amount, {sum in_doubt} AS in_doubt FROM holdfast_spent GROUP BY resource, day;

-- name: add_spent
INSERT INTO holdfast_spent (resource, day, amount, in_doubt)
SELECT r.resource, r.day, r.charged + r.in_doubt, r.in_doubt
FROM {rows resource bigint, day bigint, charged bigint, in_doubt bigint} WHERE true
ON CONFLICT (resource, day) DO UPDATE SET amount = {add holdfast_spent.amount},
    in_doubt = {add holdfast_spent.in_doubt};

-- name: standing_leases
SELECT id FROM holdfast_leases WHERE id {in leases};

-- name: newest_lease
SELECT COALESCE(MAX(id), 0) FROM holdfast_leases;

-- name: count_refusals
-- How often in a row a provider has refused the API key. Only something other than holdfast can have written more than a billion.
UPDATE holdfast_resources SET refusals = CASE WHEN refusals < 1000000000 THEN refusals + :n ELSE refusals END
WHERE id {in ids} RETURNING id, refusals;

-- name: count_stage_refusals
UPDATE holdfast_stages SET refusals = CASE WHEN refusals < 1000000000 THEN refusals + :n ELSE refusals END
WHERE id = :stage RETURNING refusals;

-- name: clear_refusals
UPDATE holdfast_resources SET refusals = 0 WHERE id {in ids} AND refusals > 0;

-- name: clear_stage_refusals
UPDATE holdfast_stages SET refusals = 0 WHERE id = :stage AND refusals > 0;

-- name: peek_waiting
-- What a claim would take now, where the items must be known before they are claimed.
SELECT w.item, i.key, i.data, w.attempts FROM holdfast_waiting w JOIN holdfast_items i ON i.id = w.item
WHERE w.stage = :stage ORDER BY w.priority, w.item LIMIT :most;

-- name: peek_held
SELECT h.item, i.key, i.data, h.attempts FROM holdfast_holds h JOIN holdfast_items i ON i.id = h.item
WHERE h.stage = :stage AND h.kind = 'version' ORDER BY h.item LIMIT :most;

-- name: read_pipeline_states
SELECT id, name, paused, reason, retry_after, paused_at, guards, tuned, provenance FROM holdfast_pipelines ORDER BY name;

-- name: set_guards
UPDATE holdfast_pipelines SET guards = :guards, tuned = :tuned WHERE id = :pipeline;

-- name: set_pause
UPDATE holdfast_pipelines SET paused = :paused, reason = :reason, retry_after = :retry_after, paused_at = :now WHERE id = :pipeline;

-- name: set_stage_pause
UPDATE holdfast_stages SET paused = :paused, reason = :reason, retry_after = :retry_after, paused_at = :now WHERE id = :stage;

-- name: pauses_to_end
-- Pipelines (without a stage) and stages whose pause is over.
SELECT id, CAST(NULL AS BIGINT) FROM holdfast_pipelines WHERE paused = 1 AND retry_after IS NOT NULL AND retry_after <= :now
UNION ALL
SELECT pipeline, id FROM holdfast_stages WHERE paused = 1 AND retry_after IS NOT NULL AND retry_after <= :now;
