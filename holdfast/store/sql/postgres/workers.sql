-- Rows are taken by physical address (ctid), so that the limit is exact; those that another transaction has locked are skipped.
-- SQLite has neither: its writer lock is held.

-- name: remove_silent
-- Workers without a heartbeat for a whole lease, on the clock that judges them; another clock means another boot.
-- One that is sending a heartbeat at this moment is locked, and skipped.
DELETE FROM holdfast_workers WHERE ctid = ANY(ARRAY(
    SELECT ctid FROM holdfast_workers WHERE alive_until <= :now OR clock <> :clock ORDER BY id FOR UPDATE SKIP LOCKED))
RETURNING id, name;

-- name: remove_workers
DELETE FROM holdfast_workers WHERE ctid = ANY(ARRAY(
    SELECT ctid FROM holdfast_workers WHERE id {in ids} ORDER BY id FOR UPDATE SKIP LOCKED))
RETURNING id, name;
