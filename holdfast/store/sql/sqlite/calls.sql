-- SQLite has no physical addresses and no row locks to skip: the writer lock is held.

-- name: take_money_of_the_gone
DELETE FROM holdfast_money WHERE (slot, stage, resource, model, day) IN (
    SELECT slot, stage, resource, model, day FROM holdfast_money m
    WHERE m.slot <> 0 AND NOT EXISTS (SELECT 1 FROM holdfast_workers w WHERE w.id = m.slot) LIMIT :most)
RETURNING stage, resource, model, day, payments, amount, doubts, in_doubt, tokens_in, tokens_out, tokens_cached, tokens_reasoning;

-- name: intended_calls
SELECT id, stage, item, name, state, lease, life, amount, resource, model, tokens_in, tokens_out, tokens_cached, tokens_reasoning, facts, day, at, reason, value, share_of
FROM holdfast_calls WHERE item {in items} AND stage {in stages} AND state = 'intended' ORDER BY id;
