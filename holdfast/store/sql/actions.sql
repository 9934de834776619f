-- Actions of a person on many items: what was asked for, how far it has come, what it has done.

-- name: add_action
-- Nothing if there is one of this request already.
INSERT INTO holdfast_actions (kind, filter, undoes, who, reason, state, place, preview, counts, created_at, touched_at, request)
VALUES (:kind, :filter, :undoes, :who, :reason, 'open', '{}', '{}', '{}', :now, :now, :request)
ON CONFLICT (request) WHERE request IS NOT NULL DO NOTHING RETURNING id;

-- name: read_action_of_request
SELECT * FROM holdfast_actions WHERE request = :request;

-- name: lock_action
-- Locked by the process that does a chunk of it.
SELECT * FROM holdfast_actions WHERE id = :id {for_update};

-- name: find_idle_action
-- An open action that no process has worked on since :before, or that the caller worked on last. A time in the future means
-- that the clock was set back.
SELECT id, touched_at FROM holdfast_actions {by ix_holdfast_actions_open}
WHERE state = 'open' AND kind {in kinds text} AND (touched_at < :before OR touched_at > :now OR (id = :mine AND touched_at = :touched_at))
ORDER BY touched_at LIMIT 1;

-- name: lock_idle_action
-- Locks it, unless another process works on it or has done so meanwhile.
SELECT * FROM holdfast_actions WHERE id = :id AND state = 'open' AND touched_at = :touched_at {skip_locked};

-- name: save_action
UPDATE holdfast_actions SET state = :state, place = :place, preview = :preview, counts = :counts, touched_at = :touched_at,
    ended_at = :ended_at
WHERE id = :id;

-- name: stop_action
UPDATE holdfast_actions SET state = 'stopped', ended_at = :now, error = :error WHERE id = :id AND state = 'open' RETURNING id;

-- name: save_preview
UPDATE holdfast_actions SET preview = :preview WHERE id = :id;

-- name: read_action
SELECT * FROM holdfast_actions WHERE id = :id;

-- name: list_actions
-- The newest first, of those before one.
SELECT * FROM holdfast_actions WHERE id < :before AND (:only_open = 0 OR state = 'open') ORDER BY id DESC LIMIT :most;

-- name: action_events
-- The events of an action, by the index of names and times: only events of its kind and period are read.
SELECT e.id, e.at, e.item, e.stage, e.data FROM holdfast_events e {by ix_holdfast_events_kind}
WHERE e.event = :event AND e.at >= :at AND e.at <= :until AND (e.at > :at OR e.id > :after) AND {position}(e.data, :mark) > 0
ORDER BY e.at, e.id LIMIT :most;

-- name: latest_moves
-- The newest event that moved each stage of these items.
SELECT e.item, e.stage, MAX(e.id) FROM holdfast_events e {by ix_holdfast_events_item}
WHERE e.item {in items} AND e.event {in events text} GROUP BY e.item, e.stage;

-- name: delete_actions
DELETE FROM holdfast_actions WHERE id IN (
    SELECT id FROM holdfast_actions WHERE ended_at < :before ORDER BY id LIMIT :most);
