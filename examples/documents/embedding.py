"""Embeddings by wordllama, whose model lies in its package: nothing is downloaded. Loaded once, when first needed."""

from __future__ import annotations

import base64
import functools
import os
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

Vectors = NDArray[np.float32]

_loading = threading.Lock()


@functools.cache
def _model() -> Any:
    # Its tokeniser warns about every fork otherwise.
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    import wordllama

    return wordllama.WordLlama.load(cache_dir=Path(wordllama.__file__).parent, disable_download=True)


def embed(texts: Sequence[str]) -> Vectors:
    """One vector of length 1 per text."""
    with _loading:
        model = _model()
    vectors: Vectors = np.asarray(model.embed(list(texts), norm=True), dtype=np.float32)
    return vectors


def as_text(vector: Vectors) -> str:
    """For JSON."""
    return base64.b64encode(vector.astype("<f4").tobytes()).decode("ascii")


def as_bytes(text: str) -> bytes:
    return base64.b64decode(text)


def from_bytes(rows: Sequence[bytes]) -> Vectors:
    return np.frombuffer(b"".join(rows), dtype="<f4").reshape(len(rows), -1)
