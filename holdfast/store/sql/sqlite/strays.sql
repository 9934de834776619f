-- Only SQLite has these tables, in place of indexes and of the numbers of transactions.

-- name: derived_rows_of_nothing
SELECT x.place, x.number, x.what, x.target FROM (
    SELECT 'amended' AS place, a.item AS number, 'item' AS what, CAST(a.item AS TEXT) AS target FROM holdfast_amended a
    WHERE NOT EXISTS (SELECT 1 FROM holdfast_items i WHERE i.id = a.item) UNION ALL
    SELECT 'grouped', g.item, 'outcome in stage', CAST(g.stage AS TEXT) FROM holdfast_grouped g
    WHERE NOT EXISTS (SELECT 1 FROM holdfast_outcomes o WHERE o.item = g.item AND o.stage = g.stage)) AS x LIMIT :most;
