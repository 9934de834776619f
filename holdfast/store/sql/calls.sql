-- The ledger: one row per paid call, and sums of it per day.

-- name: add_calls
INSERT INTO holdfast_calls (stage, item, name, state, lease, life, amount, resource, model, tokens_in, tokens_out, tokens_cached, tokens_reasoning, facts, day, at)
SELECT r.stage, r.item, r.name, r.state, r.lease, r.life, r.amount, r.resource, r.model, r.tokens_in, r.tokens_out, r.tokens_cached, r.tokens_reasoning, r.facts, r.day, r.at
FROM {rows stage bigint, item bigint, name text, state text, lease bigint, life int, amount bigint, resource text, model text, tokens_in bigint, tokens_out bigint, tokens_cached bigint, tokens_reasoning bigint, facts text, day bigint, at bigint}
WHERE true
RETURNING id, stage, item, name;

-- name: change_calls
UPDATE holdfast_calls SET state = r.state, amount = r.amount, model = r.model, tokens_in = r.tokens_in, tokens_out = r.tokens_out,
    tokens_cached = r.tokens_cached, tokens_reasoning = r.tokens_reasoning, facts = r.facts, reason = r.reason, value = r.value
FROM {rows id bigint, state text, amount bigint, model text, tokens_in bigint, tokens_out bigint, tokens_cached bigint, tokens_reasoning bigint, facts text, reason text, value text}
WHERE holdfast_calls.id = r.id;

-- name: read_calls
-- Locked until the transaction ends: settling a call depends on its current row.
SELECT id, stage, item, name, state, lease, life, amount, resource, model, tokens_in, tokens_out, tokens_cached, tokens_reasoning, facts, day, at, reason, value, share_of
FROM holdfast_calls WHERE id {in calls} ORDER BY id {for_update};

-- name: read_shares
SELECT id, stage, item, name, state, lease, life, amount, resource, model, tokens_in, tokens_out, tokens_cached, tokens_reasoning, facts, day, at, reason, value, share_of
FROM holdfast_calls WHERE share_of = :call ORDER BY id {for_update};

-- name: share_calls
UPDATE holdfast_calls SET share_of = r.share_of FROM {rows id bigint, share_of bigint} WHERE holdfast_calls.id = r.id;

-- name: shares_under_way
-- The shares of a call, given by one of them, whose attempts are in progress.
SELECT s.id FROM holdfast_calls c JOIN holdfast_calls s ON s.share_of = c.share_of JOIN holdfast_leases l ON l.id = s.lease
WHERE c.id = :call AND s.state = 'intended';

-- name: intended_calls
-- Calls of these items without a recorded end. They are found before sorting: otherwise the planner may walk all calls in order.
SELECT id, stage, item, name, state, lease, life, amount, resource, model, tokens_in, tokens_out, tokens_cached, tokens_reasoning, facts, day, at, reason, value, share_of
FROM holdfast_calls WHERE state = 'intended' AND id = ANY(ARRAY(
    SELECT id FROM holdfast_calls WHERE item {in items} AND stage {in stages} AND state = 'intended')) ORDER BY id {for_update};

-- name: calls_left_open
-- Calls that are under way under a lease that has ended.
SELECT c.id, c.stage, c.item FROM holdfast_calls c
WHERE COALESCE(c.state, '') = 'intended' AND NOT EXISTS (SELECT 1 FROM holdfast_leases l WHERE l.id = c.lease)
ORDER BY c.lease LIMIT :most;

-- name: item_calls
-- In the order of the index: with another order, the planner may walk all calls.
SELECT id, stage, name, state, lease, life, amount, resource, model, tokens_in, tokens_out, tokens_cached, tokens_reasoning, facts, day, at, reason, value, share_of
FROM holdfast_calls WHERE item = :item ORDER BY stage, id;

-- name: end_of_doubts
-- How many calls in doubt the next items of a stage have, up to a limit, and the last of these items.
SELECT COUNT(*), MAX(c.item) FROM (
    SELECT item FROM holdfast_calls WHERE state = 'doubtful' AND stage = :stage AND item > :item ORDER BY item LIMIT :most) AS c;

-- name: doubtful_calls
-- The selected calls in doubt of some items of a stage. A call that is in progress for others of its items is not in doubt.
SELECT c.id, c.stage, c.item, c.share_of FROM holdfast_calls c LEFT JOIN holdfast_items i ON i.id = c.item
WHERE c.state = 'doubtful' AND c.stage = :stage AND c.item > :item AND c.item <= :last
  AND {fits COALESCE(i.key,'') keys} AND (CAST(:name AS TEXT) IS NULL OR c.name = :name)
  AND (CAST(:before AS BIGINT) IS NULL OR c.at < :before)
  AND (c.share_of IS NULL OR (
      SELECT COUNT(*) FROM holdfast_calls s JOIN holdfast_leases l ON l.id = s.lease
      WHERE s.share_of = c.share_of AND s.state = 'intended') = 0)
ORDER BY c.item;

-- name: add_money
INSERT INTO holdfast_money (slot, stage, resource, model, day, payments, amount, doubts, in_doubt, tokens_in, tokens_out, tokens_cached, tokens_reasoning)
{values slot bigint, stage bigint, resource text, model text, day bigint, payments bigint, amount bigint, doubts bigint, in_doubt bigint, tokens_in bigint, tokens_out bigint, tokens_cached bigint, tokens_reasoning bigint}
ON CONFLICT (slot, stage, resource, model, day) DO UPDATE SET payments = {add holdfast_money.payments},
    amount = {add holdfast_money.amount}, doubts = {add holdfast_money.doubts},
    in_doubt = {add holdfast_money.in_doubt}, tokens_in = {add holdfast_money.tokens_in},
    tokens_out = {add holdfast_money.tokens_out},
    tokens_cached = {add holdfast_money.tokens_cached},
    tokens_reasoning = {add holdfast_money.tokens_reasoning};

-- name: sum_money
SELECT stage, resource, model, day, {sum payments} AS payments, {sum amount} AS costs,
       {sum doubts} AS doubts, {sum in_doubt} AS in_doubt,
       {sum tokens_in} AS tokens_in, {sum tokens_out} AS tokens_out,
       {sum tokens_cached} AS tokens_cached, {sum tokens_reasoning} AS tokens_reasoning
FROM holdfast_money GROUP BY stage, resource, model, day;

-- name: sum_calls
-- The same from the ledger itself: for a period, and by item or by quarter of an hour if asked for. `old_at` is the time of
-- the newest payment by a worker without a ledger.
SELECT c.stage, CASE WHEN CAST(:items AS INTEGER) = 1 THEN c.item END AS item, c.resource, c.model, c.day,
       CASE WHEN CAST(:quarters AS INTEGER) = 1 THEN c.at / 900000000 END AS quarter,
       CAST(SUM(CASE WHEN c.state IN ('done', 'rejected') AND c.amount > 0 AND COALESCE(c.share_of, c.id) = c.id THEN 1 ELSE 0 END) AS BIGINT) AS payments,
       {sum CASE WHEN c.state IN ('done', 'rejected') THEN c.amount ELSE 0 END} AS costs,
       CAST(SUM(CASE WHEN c.state = 'doubtful' AND COALESCE(c.share_of, c.id) = c.id THEN 1 ELSE 0 END) AS BIGINT) AS doubts,
       {sum CASE WHEN c.state = 'doubtful' THEN c.amount ELSE 0 END} AS in_doubt,
       {sum CASE WHEN c.state IN ('done', 'rejected') THEN c.tokens_in ELSE 0 END} AS tokens_in,
       {sum CASE WHEN c.state IN ('done', 'rejected') THEN c.tokens_out ELSE 0 END} AS tokens_out,
       {sum CASE WHEN c.state IN ('done', 'rejected') THEN c.tokens_cached ELSE 0 END} AS tokens_cached,
       {sum CASE WHEN c.state IN ('done', 'rejected') THEN c.tokens_reasoning ELSE 0 END} AS tokens_reasoning,
       COUNT(*) AS calls, MAX(CASE WHEN c.lease = 0 THEN c.at END) AS old_at
FROM holdfast_calls c {by ix_holdfast_calls_at} WHERE c.at >= :since AND c.at < :until GROUP BY 1, 2, 3, 4, 5, 6;

-- name: calls_until
-- The time of the call that comes after the next :most.
SELECT c.at FROM holdfast_calls c {by ix_holdfast_calls_at} WHERE c.at >= :since ORDER BY c.at LIMIT 1 OFFSET :most;

-- name: imported_calls
SELECT c.at, c.name FROM holdfast_calls c {by ix_holdfast_calls_at} WHERE c.at {in times} AND c.resource = :resource;

-- name: set_aside_by_stage
-- Money reserved for running attempts; an attempt may have reserved the same money with several resources.
SELECT l.stage, {sum x.amount} FROM holdfast_leases l
JOIN (SELECT lease, MAX(amount) AS amount FROM holdfast_reservations GROUP BY lease) AS x ON x.lease = l.id GROUP BY l.stage;

-- name: old_payments
-- Payments of workers of the version before, which leave events instead of rows in the ledger.
SELECT e.id, e.at, e.stage, e.item, e.amount, e.resource, e.data FROM holdfast_events e {by ix_holdfast_events_kind}
WHERE e.event = 'cost' ORDER BY e.at LIMIT :most {skip_locked};

-- name: old_doubts
-- Money that a worker of the version before has counted as spent, for calls that it found without a record.
SELECT e.id, e.at, e.stage, e.item, e.data FROM holdfast_events e {by ix_holdfast_events_item}
WHERE e.item {in items} AND e.event = 'money_in_doubt' AND {position}(e.data, '"memo"') = 0 ORDER BY e.id;

-- name: ledger_came
-- When an older store got its ledger; no row if it was created with one.
SELECT came.migrated_at FROM holdfast_schema_version came JOIN holdfast_schema_version made ON made.version = 1
WHERE came.version = 5 AND came.migrated_at <> made.migrated_at;

-- name: newest_old_payment
-- When a worker of the version before last counted money, if its events still exist.
SELECT MAX(e.at) FROM holdfast_events e {by ix_holdfast_events_kind}
WHERE e.event IN ('cost', 'money_in_doubt') AND (e.event = 'cost' OR {position}(e.data, '"memo"') = 0);

-- name: forget_events
DELETE FROM holdfast_events WHERE id {in events};
