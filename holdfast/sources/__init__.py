"""Where items come from: one file per kind of source, one contract."""

from holdfast.sources.contract import Found, Kept, Source, SourceFailed
from holdfast.sources.registry import KINDS, SourceSpec, read_source
from holdfast.sources.run_look import Discoverer

__all__ = ["KINDS", "Discoverer", "Found", "Kept", "Source", "SourceFailed", "SourceSpec", "read_source"]
