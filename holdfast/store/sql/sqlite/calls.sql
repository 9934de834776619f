-- No physical addresses here, and no locks to skip: the writer lock is held.

-- name: take_money_of_the_gone
DELETE FROM holdfast_money WHERE (slot, stage, resource, model, day) IN (
    SELECT slot, stage, resource, model, day FROM holdfast_money m
    WHERE m.slot <> 0 AND NOT EXISTS (SELECT 1 FROM holdfast_workers w WHERE w.id = m.slot) LIMIT :most)
RETURNING stage, resource, model, day, payments, amount, doubts, in_doubt, tokens_in, tokens_out;
