-- What is shared and limited, what is paused, where items come from, and who is told.

-- The four facts of a pipeline that stands still.
ALTER TABLE holdfast_pipelines ADD COLUMN paused SMALLINT NOT NULL DEFAULT 0;
ALTER TABLE holdfast_pipelines ADD COLUMN reason TEXT;
ALTER TABLE holdfast_pipelines ADD COLUMN retry_after BIGINT;
ALTER TABLE holdfast_pipelines ADD COLUMN paused_at BIGINT;
-- Conditions for work to begin, as its author wrote them and as a person has set them instead.
ALTER TABLE holdfast_pipelines ADD COLUMN guards TEXT NOT NULL DEFAULT '{}';
ALTER TABLE holdfast_pipelines ADD COLUMN tuned TEXT NOT NULL DEFAULT '{}';

-- The names of the resources that an attempt at the stage uses.
ALTER TABLE holdfast_stages ADD COLUMN resources TEXT NOT NULL DEFAULT '[]';

-- Something outside, shared and limited. What is allowed is in `spec`; the rest is what happens. A pipeline or a stage with
-- limits of its own has a row here too, named after it.
CREATE TABLE holdfast_resources (
    id {identity},
    name TEXT NOT NULL UNIQUE,
    spec TEXT NOT NULL,
    -- What a person has set instead, until the author says something else.
    tuned TEXT NOT NULL DEFAULT '{}',
    -- Thousandths of the full pace: less after a rate limit, growing back.
    pace INTEGER NOT NULL DEFAULT 1000,
    paced_at BIGINT NOT NULL DEFAULT 0,
    cool_until BIGINT NOT NULL DEFAULT 0,
    paused SMALLINT NOT NULL DEFAULT 0,
    reason TEXT,
    retry_after BIGINT,
    -- The breaker: failures in a row, a fading sample, and when it is open: until when, who probes, and since which lease
    -- results count again.
    failures INTEGER NOT NULL DEFAULT 0,
    sample INTEGER NOT NULL DEFAULT 0,
    sample_failed INTEGER NOT NULL DEFAULT 0,
    open_until BIGINT,
    probe BIGINT,
    votes_from BIGINT NOT NULL DEFAULT 0,
    updated_at BIGINT NOT NULL
) {hot};

-- Token buckets, one per resource and unit ('' counts calls): the time, in nanoseconds, up to which all is used up.
CREATE TABLE holdfast_buckets (
    resource BIGINT NOT NULL,
    unit TEXT NOT NULL,
    used_until BIGINT NOT NULL,
    PRIMARY KEY (resource, unit)
) {hot};

-- Money set aside by a claim until its attempt has ended, in millionths. One whose lease is gone is free.
CREATE TABLE holdfast_reservations (
    lease BIGINT NOT NULL,
    resource BIGINT NOT NULL,
    amount BIGINT NOT NULL,
    PRIMARY KEY (lease, resource)
) {keyed} {hot};

-- Money spent, by day of the resource's own calendar, in millionths.
CREATE TABLE holdfast_spent (
    resource BIGINT NOT NULL,
    day BIGINT NOT NULL,
    amount BIGINT NOT NULL,
    PRIMARY KEY (resource, day)
) {keyed};

-- Where items come from. One worker at a time looks, and vouches for it as for a lease.
CREATE TABLE holdfast_sources (
    id {identity},
    pipeline BIGINT NOT NULL,
    name TEXT NOT NULL,
    active SMALLINT NOT NULL DEFAULT 1,
    -- What the source remembers from one look to the next.
    memory TEXT NOT NULL DEFAULT '{}',
    run BIGINT NOT NULL DEFAULT 0,
    due_at BIGINT NOT NULL,
    worker BIGINT,
    failures INTEGER NOT NULL DEFAULT 0,
    error TEXT,
    looked_at BIGINT,
    found TEXT,
    UNIQUE (pipeline, name)
);

-- What a source has found: what its content looked like, and in which look it was last seen.
CREATE TABLE holdfast_found (
    source BIGINT NOT NULL,
    key TEXT {bytewise} NOT NULL,
    mark TEXT,
    run BIGINT NOT NULL,
    PRIMARY KEY (source, key)
) {keyed};

-- Up to which event a rule has looked, and what it still has to tell.
CREATE TABLE holdfast_alerts (
    name TEXT PRIMARY KEY,
    looked_until BIGINT NOT NULL,
    told_at BIGINT
);
CREATE TABLE holdfast_deliveries (
    id {identity},
    alert TEXT NOT NULL,
    body TEXT NOT NULL,
    attempts INTEGER NOT NULL DEFAULT 0,
    due_at BIGINT NOT NULL,
    worker BIGINT,
    error TEXT
);
CREATE INDEX ix_holdfast_deliveries_due ON holdfast_deliveries (due_at);
