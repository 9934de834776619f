"""The address of a PostgreSQL store, and the names that follow from its schema."""

from __future__ import annotations

import hashlib
import re
from urllib.parse import SplitResult, unquote, urlsplit

from holdfast.errors import UsageError
from holdfast.model.redact import ESCAPE, is_ambiguous

MISSING_DRIVER = "PostgreSQL needs a driver: pip install 'psycopg[binary]'"
UNREADABLE = "the store's address cannot be read: write postgresql://user:password@host:port/database?setting=value"


#: As libpq writes it, or as SQLAlchemy does, with a driver. We always use psycopg.
_KIND = re.compile(r"postgres(ql)?(\+\w+)?://")


def is_postgres(url: str) -> bool:
    return _KIND.match(url) is not None


def read_url(url: str) -> tuple[str, str, str]:
    """The address for libpq, the schema to use, and the address as it may be shown."""
    parts = _split(url)
    user = f"{parts.username}@" if parts.username else ""
    # Other settings are left as they are: libpq decodes some characters differently from web forms.
    given = [part for part in parts.query.split("&") if part]
    settings = {name: unquote(value) for name, _, value in (part.partition("=") for part in given)}
    schema = settings.get("schema", "holdfast")
    if not schema or "\0" in schema or len(schema.encode()) > 63:
        raise UsageError(f"store: the schema name {schema!r} must have 1 to 63 characters")
    rest = "&".join(part for part in given if not part.startswith("schema="))
    place = parts.netloc.rpartition("@")[2] or settings.get("host", "")
    return _joined(parts._replace(query=rest)), schema, f"postgresql://{user}{place}{parts.path}"


def quoted(name: str) -> str:
    """A name as SQL has it."""
    return '"' + name.replace('"', '""') + '"'


def with_database(url: str, name: str) -> str:
    """The address of another database on the same server."""
    return _joined(_split(url)._replace(path=f"/{name}"))


def _split(url: str) -> SplitResult:
    if is_ambiguous(url):
        raise UsageError(f"the store's address cannot be read: {ESCAPE}")
    try:
        parts = urlsplit(url)
        _ = parts.username  # read here: it may be malformed
    except ValueError:
        raise UsageError(UNREADABLE) from None
    return parts


def _joined(parts: SplitResult) -> str:
    # Not urlunsplit, which drops the slashes of an empty host.
    return f"postgresql://{parts.netloc}{parts.path}{f'?{parts.query}' if parts.query else ''}"


def channel(schema: str) -> str:
    """The channel on which this schema's workers are notified."""
    return f"holdfast_{hashlib.blake2b(schema.encode(), digest_size=8).hexdigest()}"


def lock_key(schema: str) -> int:
    return int.from_bytes(hashlib.blake2b(f"holdfast {schema}".encode(), digest_size=7).digest(), "big")
