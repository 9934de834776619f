"""Blobs: content too large for a result, or not JSON at all, kept under its SHA-256 outside of the database.

Content is complete and durable before anything can refer to it, and never changes: what a hash names is there as a whole or
not at all. What refers to it is found by reading the store (`engine/collect_blobs.py`).
"""

from holdfast.blobs.blobs import Blobs
from holdfast.blobs.opening import BLOBS_VARIABLE, NoBlobs, open_blobs
from holdfast.blobs.reference import Blob

__all__ = ["BLOBS_VARIABLE", "Blob", "Blobs", "NoBlobs", "open_blobs"]
