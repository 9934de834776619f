-- Paid sub-steps, money in the event log, what an outcome was made from, and items that belong to others.

ALTER TABLE holdfast_outcomes ADD COLUMN input_hash TEXT;
ALTER TABLE holdfast_outcomes ADD COLUMN cost BIGINT NOT NULL DEFAULT 0;
-- How often the stage has been run from its beginning: a re-run of a passed stage begins a new life.
ALTER TABLE holdfast_outcomes ADD COLUMN life INTEGER NOT NULL DEFAULT 1;

-- Millionths of the unit of money, so that sums are exact.
ALTER TABLE holdfast_events ADD COLUMN amount BIGINT;
ALTER TABLE holdfast_events ADD COLUMN resource TEXT;

-- Versions of a stage whose results still stand, and the pipeline of the children it waits for.
ALTER TABLE holdfast_stages ADD COLUMN compatible TEXT NOT NULL DEFAULT '[]';
ALTER TABLE holdfast_stages ADD COLUMN after_children TEXT;

-- The stored result of a named sub-step inside a stage. `intended`: about to be called, or called and not recorded.
-- They last until the stage has passed.
CREATE TABLE holdfast_memos (
    stage BIGINT NOT NULL,
    item BIGINT NOT NULL,
    name TEXT {bytewise} NOT NULL,
    state TEXT NOT NULL CHECK (state IN ('intended', 'done')),
    version TEXT NOT NULL,
    idempotency_key TEXT NOT NULL,
    lease BIGINT NOT NULL,
    estimate BIGINT,
    cost BIGINT,
    value TEXT,
    at BIGINT NOT NULL,
    PRIMARY KEY (stage, item, name)
) {keyed};

-- Items that were submitted as children of others.
CREATE TABLE holdfast_children (
    parent BIGINT NOT NULL,
    child BIGINT NOT NULL,
    PRIMARY KEY (parent, child)
) {keyed};
CREATE INDEX ix_holdfast_children_child ON holdfast_children (child);

-- As before, but an item that waits for its children is not done: with nothing open and nothing gone wrong, that is the
-- only reason why such a stage has not begun.
DROP VIEW holdfast_item_status;
CREATE VIEW holdfast_item_status AS
SELECT i.pipeline, i.id AS item, i.key,
    CASE
        WHEN EXISTS (SELECT 1 FROM holdfast_item_stages x JOIN holdfast_stages s ON s.id = x.stage AND s.active = 1
                     WHERE x.item = i.id AND x.state = 'in_progress') THEN 'in_progress'
        WHEN EXISTS (SELECT 1 FROM holdfast_item_stages x JOIN holdfast_stages s ON s.id = x.stage AND s.active = 1
                     WHERE x.item = i.id AND x.state IN ('pending', 'retry_later')) THEN 'pending'
        WHEN EXISTS (SELECT 1 FROM holdfast_item_stages x JOIN holdfast_stages s ON s.id = x.stage AND s.active = 1
                     WHERE x.item = i.id AND x.state IN ('failed', 'exhausted')) THEN 'failed'
        WHEN EXISTS (SELECT 1 FROM holdfast_item_stages x JOIN holdfast_stages s ON s.id = x.stage AND s.active = 1
                     WHERE x.item = i.id AND x.state = 'cancelled') THEN 'cancelled'
        WHEN EXISTS (SELECT 1 FROM holdfast_stages s WHERE s.pipeline = i.pipeline AND s.active = 1
                     AND s.backfill_next IS NOT NULL AND i.id >= s.backfill_next AND i.id <= s.backfill_until) THEN 'pending'
        WHEN EXISTS (SELECT 1 FROM holdfast_stages s WHERE s.pipeline = i.pipeline AND s.active = 1
                     AND s.after_children IS NOT NULL
                     AND NOT EXISTS (SELECT 1 FROM holdfast_outcomes o WHERE o.item = i.id AND o.stage = s.id)) THEN 'pending'
        ELSE 'done'
    END AS status
FROM holdfast_items i;
