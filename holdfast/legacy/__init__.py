"""Import what an earlier program left in a database: items, how far they got, results, costs and events."""

from holdfast.legacy.importing import import_legacy
from holdfast.legacy.mapping import Mapped, MappedByFunction
from holdfast.legacy.open_database import open_old

__all__ = ["Mapped", "MappedByFunction", "import_legacy", "open_old"]
