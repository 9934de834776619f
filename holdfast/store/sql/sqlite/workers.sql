-- SQLite has no physical addresses and no row locks to skip: the writer lock is held.

-- name: remove_silent
DELETE FROM holdfast_workers WHERE alive_until <= :now OR clock <> :clock RETURNING id, name;

-- name: remove_workers
DELETE FROM holdfast_workers WHERE id {in ids} RETURNING id, name;
