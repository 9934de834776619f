"""The rights of roles: what a worker needs, and what a reader needs."""

from __future__ import annotations

from collections.abc import Iterable

from holdfast.store.postgres_address import quoted, read_url


def grants(url: str, workers: Iterable[str], readers: Iterable[str]) -> list[str]:
    """The statements by which the owner of the tables lets roles work with them, or only read them. Creating and changing
    tables is left to the owner."""
    schema = quoted(read_url(url)[1])
    written = []
    for rights, roles in (("SELECT, INSERT, UPDATE, DELETE", workers), ("SELECT", readers)):
        for role in map(quoted, roles):
            written += [
                f"GRANT USAGE ON SCHEMA {schema} TO {role};",
                f"GRANT {rights} ON ALL TABLES IN SCHEMA {schema} TO {role};",
                f"ALTER DEFAULT PRIVILEGES IN SCHEMA {schema} GRANT {rights} ON TABLES TO {role};",
            ]
    return written
