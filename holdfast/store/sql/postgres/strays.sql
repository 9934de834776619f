-- PostgreSQL has no tables that repeat what others hold.

-- name: derived_rows_of_nothing
SELECT '', 0, '', '' LIMIT 0 * :most;
