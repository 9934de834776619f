-- name: hold_leases
-- Make sure that leases stand, and go on standing until this transaction ends.
SELECT id, stage FROM holdfast_leases WHERE id {in leases} {for_update};

-- name: save_memos
INSERT INTO holdfast_memos (stage, item, name, state, version, idempotency_key, lease, estimate, cost, value, at)
{values stage bigint, item bigint, name text, state text, version text, idempotency_key text, lease bigint, estimate bigint, cost bigint, value text, at bigint}
ON CONFLICT (stage, item, name) DO UPDATE SET state = excluded.state, version = excluded.version,
    idempotency_key = excluded.idempotency_key, lease = excluded.lease, estimate = excluded.estimate,
    cost = excluded.cost, value = excluded.value, at = excluded.at;

-- name: read_memos
SELECT item, name, state, version, idempotency_key, cost, value FROM holdfast_memos WHERE stage = :stage AND item {in items};

-- name: forget_memos
DELETE FROM holdfast_memos WHERE stage = :stage AND item {in items} RETURNING item, name, state, idempotency_key;

-- name: forget_memo
DELETE FROM holdfast_memos WHERE stage = :stage AND item = :item AND name = :name RETURNING state;

-- name: item_memos
SELECT stage, name, state, version, idempotency_key, cost, value, at FROM holdfast_memos
WHERE stage {in stages} AND item = :item ORDER BY at;
