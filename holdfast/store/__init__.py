"""The only place that speaks SQL: connections, transactions, and the statements the engine calls by name."""

from holdfast.store.commit_once import AtOnce, Write
from holdfast.store.driver import Limits
from holdfast.store.opening import open_store
from holdfast.store.store import Store
from holdfast.store.transaction import Transaction

__all__ = ["AtOnce", "Limits", "Store", "Transaction", "Write", "open_store"]
