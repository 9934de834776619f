-- A row that somebody else has written with a number far above the others does not move the sequence: what happens later has
-- smaller numbers, and rules that had looked as far as that row would not see it. SQLite goes on from the highest number. A role that
-- may not read the sequence (PostgreSQL before 18 raises an error) counts every row.

-- name: newest_events
SELECT id, at FROM holdfast_events WHERE id <= COALESCE((
    SELECT CASE WHEN pg_catalog.has_sequence_privilege(s.name, 'SELECT, USAGE')
                THEN pg_catalog.pg_sequence_last_value(CAST(s.name AS pg_catalog.regclass)) END
    FROM (SELECT pg_catalog.pg_get_serial_sequence('holdfast_events', 'id') AS name) AS s), 9223372036854775807)
ORDER BY id DESC LIMIT :most;
