-- Attempts by minute: see the table in the migrations.

-- name: add_minutes
INSERT INTO holdfast_minutes (minute, stage, slot, counts) {values minute bigint, stage bigint, slot bigint, counts text};

-- name: minutes_to_join
-- Rows of single workers before :before, and minutes before :old that are to become a longer span.
SELECT minute, stage, slot, counts FROM holdfast_minutes
WHERE minute >= :from AND minute < :before AND (slot <> 0 OR (minute < :old AND minute % :span <> 0))
ORDER BY minute, stage, slot LIMIT :most;

-- name: joined_minutes
SELECT minute, stage, counts FROM holdfast_minutes WHERE minute {in minutes} AND slot = 0;

-- name: forget_minutes
DELETE FROM holdfast_minutes WHERE (minute, stage, slot) IN (SELECT r.minute, r.stage, r.slot
    FROM {rows minute bigint, stage bigint, slot bigint});

-- name: put_joined_minutes
INSERT INTO holdfast_minutes (minute, stage, slot, counts) {values minute bigint, stage bigint, slot bigint, counts text}
ON CONFLICT (minute, stage, slot) DO UPDATE SET counts = excluded.counts;

-- name: read_minutes
SELECT minute, stage, counts FROM holdfast_minutes WHERE minute >= :from AND minute < :until;

-- name: delete_minutes
DELETE FROM holdfast_minutes WHERE minute < :before;
