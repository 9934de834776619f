-- Packed, as in moves.sql.

-- name: read_results
SELECT json_group_array(json_array(item, stage, output_hash, CASE WHEN length(result) <= :most THEN result END)) AS packed
FROM holdfast_outcomes WHERE item {in items} AND stage {in stages} AND state IN ('done', 'skipped');
