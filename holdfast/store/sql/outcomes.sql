-- name: insert_routine
INSERT INTO holdfast_outcomes (stage, version, type, state, cost, life, item, attempts, lease, started_at, ended_at, input_hash, output_hash, result)
{values :stage bigint, :version text, :type text, :state text, :cost bigint, :life int, item bigint, attempts int, lease bigint, started_at bigint, ended_at bigint, input_hash text, output_hash text, result text};

-- name: insert_outcomes
INSERT INTO holdfast_outcomes (item, stage, state, attempts, lease, started_at, ended_at, version, input_hash, output_hash, cost, life, error, result, type)
{values item bigint, stage bigint, state text, attempts int, lease bigint, started_at bigint, ended_at bigint, version text, input_hash text, output_hash text, cost bigint, life int, error text, result text, type text};

-- name: replace_outcomes
-- Where its stage keeps it, the result that is replaced stays beside the new one: the last that there was, also if failures follow.
INSERT INTO holdfast_outcomes (item, stage, state, attempts, lease, started_at, ended_at, version, input_hash, output_hash, cost, life, error, result, type)
{values item bigint, stage bigint, state text, attempts int, lease bigint, started_at bigint, ended_at bigint, version text, input_hash text, output_hash text, cost bigint, life int, error text, result text, type text}
ON CONFLICT (item, stage) DO UPDATE SET state = excluded.state, attempts = excluded.attempts, lease = excluded.lease,
    started_at = excluded.started_at, ended_at = excluded.ended_at, version = excluded.version,
    input_hash = excluded.input_hash, output_hash = excluded.output_hash, cost = excluded.cost, life = excluded.life, error = excluded.error, error_group = NULL, result = excluded.result,
    type = excluded.type,
    previous = CASE WHEN holdfast_outcomes.result IS NOT NULL AND (SELECT keep_previous FROM holdfast_stages WHERE id = excluded.stage) = 1 THEN holdfast_outcomes.result ELSE holdfast_outcomes.previous END,
    previous_version = CASE WHEN holdfast_outcomes.result IS NOT NULL AND (SELECT keep_previous FROM holdfast_stages WHERE id = excluded.stage) = 1 THEN holdfast_outcomes.version ELSE holdfast_outcomes.previous_version END,
    previous_ended_at = CASE WHEN holdfast_outcomes.result IS NOT NULL AND (SELECT keep_previous FROM holdfast_stages WHERE id = excluded.stage) = 1 THEN holdfast_outcomes.ended_at ELSE holdfast_outcomes.previous_ended_at END;

-- name: set_error_groups
UPDATE holdfast_outcomes SET error_group = r.error_group FROM {rows item bigint, stage bigint, error_group text}
WHERE holdfast_outcomes.item = r.item AND holdfast_outcomes.stage = r.stage;

-- name: add_to_costs
-- Adds to the cost of imported outcomes, which have no lease.
UPDATE holdfast_outcomes SET cost = cost + r.amount
FROM {rows item bigint, stage bigint, amount bigint}
WHERE holdfast_outcomes.item = r.item AND holdfast_outcomes.stage = r.stage AND holdfast_outcomes.lease IS NULL;

-- name: read_outcome_states
SELECT item, state, output_hash, version, type FROM holdfast_outcomes WHERE stage = :stage AND item {in items};

-- name: read_results
-- Results of finished stages; those over :most characters are read on demand, so that a claim needs little memory.
SELECT item, stage, output_hash, CASE WHEN length(result) <= :most THEN result END FROM holdfast_outcomes
WHERE item {in items} AND stage {in stages} AND state IN ('done', 'skipped');

-- name: read_lives
SELECT item, state, life FROM holdfast_outcomes WHERE stage = :stage AND item {in items};

-- name: read_result
SELECT state, result FROM holdfast_outcomes WHERE item = :item AND stage = :stage;
