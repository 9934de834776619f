"""The address of a PostgreSQL store, and the names that follow from its schema."""

from __future__ import annotations

import hashlib
from urllib.parse import parse_qsl, quote, urlencode, urlsplit, urlunsplit

from holdfast.errors import UsageError

UNREADABLE = "the store's address cannot be read: write postgresql://user:password@host:port/database?setting=value"


def read_url(url: str) -> tuple[str, str, str]:
    """What libpq should get, the schema to use, and the address as it may be shown."""
    try:
        parts = urlsplit(url)
        user = f"{parts.username}@" if parts.username else ""
    except ValueError:
        raise UsageError(UNREADABLE) from None
    query = dict(parse_qsl(parts.query, keep_blank_values=True))
    schema = query.pop("schema", "holdfast")
    if not schema or "\0" in schema or len(schema.encode()) > 63:
        raise UsageError(f"store: the schema name {schema!r} must have 1 to 63 characters")
    conninfo = urlunsplit(parts._replace(query=urlencode(query, quote_via=quote)))
    place = parts.netloc.rpartition("@")[2] or query.get("host", "")
    return conninfo, schema, f"postgresql://{user}{place}{parts.path}"


def channel(schema: str) -> str:
    """The name under which this schema's news are told."""
    return f"holdfast_{hashlib.blake2b(schema.encode(), digest_size=8).hexdigest()}"


def lock_key(schema: str) -> int:
    return int.from_bytes(hashlib.blake2b(f"holdfast {schema}".encode(), digest_size=7).digest(), "big")
