-- Takes the work that a person has selected out of its tables.

-- name: lock_outcomes
-- Nobody else may reopen or replace these outcomes until this transaction ends.
SELECT o.item, o.stage, o.state, o.version, o.type FROM holdfast_outcomes o
WHERE o.stage = :stage AND o.item {in items} ORDER BY o.item {for_update};

-- name: take_held
DELETE FROM holdfast_holds WHERE stage = :stage AND item {in items} RETURNING item, attempts, alone, rerun;

-- name: take_held_in_doubt
DELETE FROM holdfast_holds WHERE stage = :stage AND item {in items} AND kind = 'doubt' RETURNING item, attempts, alone, rerun;

-- name: take_delayed
DELETE FROM holdfast_delayed WHERE stage = :stage AND item {in items} RETURNING item, attempts, alone, rerun;

-- name: take_waiting
DELETE FROM holdfast_waiting WHERE stage = :stage AND (priority, item) IN (SELECT i.priority, i.id FROM holdfast_items i WHERE i.id {in items})
RETURNING item, attempts, alone, rerun;

-- name: kind_of_hold
SELECT kind FROM holdfast_holds WHERE stage = :stage AND item = :item;

-- name: reasons_of_holds
SELECT kind, reason, MIN(since) FROM (
    SELECT kind, reason, since FROM holdfast_holds WHERE stage = :stage ORDER BY item LIMIT :most) AS seen
GROUP BY kind, reason ORDER BY kind, reason;
