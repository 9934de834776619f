"""holdfast: run every item through every stage, and lose nothing, on a SQLite file or on PostgreSQL.

The front door. Names are loaded when they are first used, so that `holdfast --help` does not wait for them.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from holdfast.version import VERSION

if TYPE_CHECKING:
    from holdfast.app import Holdfast
    from holdfast.blobs.reference import Blob
    from holdfast.engine.provenance import merge_provenance
    from holdfast.engine.upsert import Added
    from holdfast.errors import (
        AlreadyRunning,
        BadRequest,
        BlobMissing,
        ContentFiltered,
        DefinitionError,
        HoldfastError,
        InDoubt,
        InputTooLong,
        LeaseLost,
        NotSent,
        Permanent,
        Rejected,
        RunFailed,
        StoreError,
        UsageError,
    )
    from holdfast.model.backoff import Backoff
    from holdfast.model.durations import Duration, seconds
    from holdfast.model.item import Item
    from holdfast.model.outcome import CredentialRefused, OutOfCredit, Overloaded, RateLimited, RetryLater, Skip
    from holdfast.model.stage import Stage
    from holdfast.model.urls import url_key
    from holdfast.pipeline import Pipeline
    from holdfast.store.sqlalchemy_engine import store_engine
    from holdfast.worker import Settings
    from holdfast.worker.batch_context import BatchContext
    from holdfast.worker.context import Context
    from holdfast.worker.once import CallAgain

__version__ = VERSION

__all__ = [
    "Added",
    "AlreadyRunning",
    "Backoff",
    "BadRequest",
    "BatchContext",
    "Blob",
    "BlobMissing",
    "CallAgain",
    "ContentFiltered",
    "Context",
    "CredentialRefused",
    "DefinitionError",
    "Duration",
    "Holdfast",
    "HoldfastError",
    "InDoubt",
    "InputTooLong",
    "Item",
    "LeaseLost",
    "NotSent",
    "OutOfCredit",
    "Overloaded",
    "Permanent",
    "Pipeline",
    "RateLimited",
    "Rejected",
    "RetryLater",
    "RunFailed",
    "Settings",
    "Skip",
    "Stage",
    "StoreError",
    "UsageError",
    "merge_provenance",
    "seconds",
    "store_engine",
    "url_key",
]

_HOMES = {
    "engine.add": ("Added",),
    "model.durations": ("Duration", "seconds"),
    "store.sqlalchemy_engine": ("store_engine",),
    "worker": ("Settings",),
    "engine.provenance": ("merge_provenance",),
    "worker.once": ("CallAgain",),
    "app": ("Holdfast",),
    "blobs.reference": ("Blob",),
    "errors": (
        "AlreadyRunning",
        "BadRequest",
        "BlobMissing",
        "ContentFiltered",
        "DefinitionError",
        "HoldfastError",
        "InDoubt",
        "InputTooLong",
        "LeaseLost",
        "NotSent",
        "Permanent",
        "Rejected",
        "RunFailed",
        "StoreError",
        "UsageError",
    ),
    "model.backoff": ("Backoff",),
    "model.item": ("Item",),
    "model.outcome": ("CredentialRefused", "OutOfCredit", "Overloaded", "RateLimited", "RetryLater", "Skip"),
    "model.stage": ("Stage",),
    "model.urls": ("url_key",),
    "pipeline": ("Pipeline",),
    "worker.batch_context": ("BatchContext",),
    "worker.context": ("Context",),
}


def __dir__() -> list[str]:
    return [*__all__, "__version__"]


def __getattr__(name: str) -> Any:
    for home, names in _HOMES.items():
        if name in names:
            return getattr(import_module(f"holdfast.{home}"), name)
    raise AttributeError(f"holdfast has no {name!r}")
