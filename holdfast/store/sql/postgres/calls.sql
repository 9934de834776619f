-- Rows are taken by physical address (ctid), so that the limit is exact; those that another transaction has locked are skipped.
-- SQLite has neither: its writer lock is held.

-- name: take_money_of_the_gone
-- Sums of writers that are not live workers, for folding into slot 0.
DELETE FROM holdfast_money WHERE ctid = ANY(ARRAY(
    SELECT m.ctid FROM holdfast_money m
    WHERE m.slot <> 0 AND NOT EXISTS (SELECT 1 FROM holdfast_workers w WHERE w.id = m.slot)
    ORDER BY m.slot, m.stage, m.resource, m.model, m.day LIMIT :most FOR UPDATE OF m SKIP LOCKED))
RETURNING stage, resource, model, day, payments, amount, doubts, in_doubt, tokens_in, tokens_out, tokens_cached, tokens_reasoning;
