-- name: hold_leases
-- Lock leases that are still held until this transaction ends.
SELECT id, stage FROM holdfast_leases WHERE id {in leases} {for_update};

-- name: save_memos
INSERT INTO holdfast_memos (stage, item, name, state, version, idempotency_key, lease, estimate, cost, value, at, call, rejections)
{values stage bigint, item bigint, name text, state text, version text, idempotency_key text, lease bigint, estimate bigint, cost bigint, value text, at bigint, call bigint, rejections int}
ON CONFLICT (stage, item, name) DO UPDATE SET state = excluded.state, version = excluded.version,
    idempotency_key = excluded.idempotency_key, lease = excluded.lease, estimate = excluded.estimate,
    cost = excluded.cost, value = excluded.value, at = excluded.at, call = excluded.call, rejections = excluded.rejections;

-- name: old_intents
-- Calls that a worker of the version before has begun and not recorded: its memos have no row in the ledger.
SELECT stage, item, name, lease, estimate FROM holdfast_memos
WHERE stage {in stages} AND item {in items} AND state = 'intended' AND call IS NULL;

-- name: point_memos
UPDATE holdfast_memos SET call = r.call FROM {rows stage bigint, item bigint, name text, call bigint}
WHERE holdfast_memos.stage = r.stage AND holdfast_memos.item = r.item AND holdfast_memos.name = r.name;

-- name: read_memos
SELECT item, name, state, version, idempotency_key, cost, value, call, rejections, estimate FROM holdfast_memos
WHERE stage = :stage AND item {in items};

-- name: forget_memos
DELETE FROM holdfast_memos WHERE stage = :stage AND item {in items} RETURNING item, name, state, idempotency_key;

-- name: forget_memo
DELETE FROM holdfast_memos WHERE stage = :stage AND item = :item AND name = :name RETURNING state;

-- name: item_memos
SELECT stage, name, state, version, idempotency_key, cost, value, at, call, rejections FROM holdfast_memos
WHERE stage {in stages} AND item = :item ORDER BY at;

-- name: memos_of
-- The memos of these items at a stage in a state; not those of work in progress.
SELECT m.stage, m.item, m.name, m.version, m.idempotency_key, m.cost, m.value, m.call, m.rejections, m.at
FROM holdfast_memos m WHERE m.state = :state AND m.stage = :stage AND m.item {in items}
  AND (m.item, m.stage) NOT IN (SELECT l.item, l.stage FROM holdfast_leases l)
ORDER BY m.item, m.name;

-- name: end_of_memos
-- How many memos the next items of a stage have, up to a limit, and the last of these items.
SELECT COUNT(*), MAX(m.item) FROM (
    SELECT item FROM holdfast_memos WHERE stage = :stage AND item > :item ORDER BY item LIMIT :most) AS m;

-- name: choose_memos
-- The selected memos in a state of some items of a stage; not those of work in progress, whose handler may be using them.
SELECT m.stage, m.item, m.name, m.version, m.idempotency_key, m.cost, m.value, m.call, m.rejections
FROM holdfast_memos m JOIN holdfast_items i ON i.id = m.item
WHERE m.state = :state AND m.stage = :stage AND m.item > :item AND m.item <= :last
  AND {fits i.key keys} AND (CAST(:name AS TEXT) IS NULL OR m.name = :name)
  AND (CAST(:error AS TEXT) IS NULL
       OR (SELECT COUNT(*) FROM holdfast_outcomes o WHERE o.item = m.item AND o.stage = m.stage AND {position}(o.error, :error) > 0) > 0
       OR (SELECT COUNT(*) FROM holdfast_delayed d WHERE d.item = m.item AND d.stage = m.stage AND {position}(d.error, :error) > 0) > 0)
  AND (CAST(:group AS TEXT) IS NULL
       OR (SELECT COUNT(*) FROM holdfast_outcomes o WHERE o.item = m.item AND o.stage = m.stage AND o.error_group = :group) > 0
       OR (SELECT COUNT(*) FROM holdfast_delayed d WHERE d.item = m.item AND d.stage = m.stage AND d.error_group = :group) > 0)
  AND (CAST(:before AS BIGINT) IS NULL OR m.at < :before)
  AND (m.item, m.stage) NOT IN (SELECT l.item, l.stage FROM holdfast_leases l)
ORDER BY m.item;
