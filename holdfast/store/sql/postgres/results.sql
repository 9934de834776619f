-- Transactions commit in any order here: a snapshot tells which of them are in progress.

-- name: results_mark
-- Numbers of transactions mean something within one history of one server only.
SELECT concat_ws('/', 'postgres', (SELECT system_identifier FROM pg_control_system()),
           CASE WHEN pg_is_in_recovery() THEN (SELECT lpad(to_hex(timeline_id), 8, '0') FROM pg_control_checkpoint())
                ELSE lower(left(pg_walfile_name(pg_current_wal_lsn()), 8)) END,
           (SELECT oid FROM pg_database WHERE datname = current_database()),
           (SELECT MIN(migrated_at) FROM holdfast_schema_version)),
       CAST(CAST(pg_snapshot_xmax(pg_current_snapshot()) AS TEXT) AS BIGINT),
       CAST(CAST(pg_snapshot_xmin(pg_current_snapshot()) AS TEXT) AS BIGINT) - 1,
       CAST(pg_current_snapshot() AS TEXT),
       CAST(0 AS BIGINT);
