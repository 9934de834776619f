"""The question by which workers are started and stopped by need, as SQL for those who ask it themselves."""

from __future__ import annotations

from holdfast.errors import UsageError
from holdfast.store.kind import kind_of_address
from holdfast.store.postgres_address import quoted, read_url

#: What falls due within this time needs a worker now: it takes a while to start one.
SOON_US = 60_000_000

#: The time in microseconds since 1970.
NOW_POSTGRES = "CAST(EXTRACT(EPOCH FROM clock_timestamp()) * 1000000 AS BIGINT)"
NOW_SQLITE = "CAST(strftime('%s', 'now') AS INTEGER) * 1000000"


def demand_query(url: str) -> str:
    """A query with one number: how much work needs a worker now or soon; 0 if none is needed."""
    kind = kind_of_address(url)
    if kind is None:
        raise UsageError("the address names neither a SQLite file nor a PostgreSQL database")
    view = "holdfast_demand" if kind == "sqlite" else f"{quoted(read_url(url)[1])}.demand"
    now = NOW_SQLITE if kind == "sqlite" else NOW_POSTGRES
    return f"SELECT COALESCE(SUM(n), 0) AS demand FROM {view} WHERE due_at <= {now} + {SOON_US}"
