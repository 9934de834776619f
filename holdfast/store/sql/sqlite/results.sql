-- Commits follow one another here, so that the numbers of leases tell what is new.

-- name: results_mark
-- The newest lease, those that are open, and how far all others are committed. Beyond a hundred open ones, the rest counts as open.
WITH newest AS (SELECT COALESCE(MAX(seq), 0) AS lease FROM sqlite_sequence WHERE name = 'holdfast_leases')
SELECT 'sqlite/' || (SELECT MIN(migrated_at) FROM holdfast_schema_version), lease,
       COALESCE((SELECT id - 1 FROM holdfast_leases ORDER BY id LIMIT 1 OFFSET 100), lease),
       (SELECT json_group_array(id) FROM (SELECT id FROM holdfast_leases ORDER BY id LIMIT 100)),
       COALESCE((SELECT seq FROM sqlite_sequence WHERE name = 'holdfast_items'), 0)
FROM newest;
