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
