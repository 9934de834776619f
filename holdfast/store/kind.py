"""The two kinds of store. Only this file tells them apart by an address; who has a store asks `store.kind`."""

from __future__ import annotations

from typing import Literal

from holdfast.store.postgres_address import is_postgres

StoreKind = Literal["sqlite", "postgres"]


def kind_of_address(url: str) -> StoreKind | None:
    """The kind of store that an address names; None if it names neither."""
    if url.startswith("sqlite:"):
        return "sqlite"
    return "postgres" if is_postgres(url) else None
