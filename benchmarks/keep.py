"""What `ctx.keep` of a megabyte costs, beside a plain write and fsync of a megabyte on the same disk.

python -m benchmarks.keep [FOLDER]
"""

from __future__ import annotations

import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from holdfast.blobs.folder import BlobFolder

SIZE = 1_000_000
ROUNDS = 200


def main() -> None:
    with tempfile.TemporaryDirectory(dir=sys.argv[1] if len(sys.argv) > 1 else ".") as folder:
        for name, seconds in measure(Path(folder)).items():
            spread = sorted(seconds)
            print(f"{name:28} median {_ms(statistics.median(spread))}   p95 {_ms(spread[len(spread) * 95 // 100])}")


def measure(folder: Path, rounds: int = ROUNDS) -> dict[str, list[float]]:
    """Seconds of each act, taken in turn, so that a busy disk is the same for all."""
    blobs = BlobFolder(folder / "blobs", 0o600)
    blobs.keep(b"made its folders")
    took: dict[str, list[float]] = {"write and fsync": [], "keep": [], "keep what is there already": []}
    for number in range(rounds):
        content = os.urandom(SIZE)
        acts: tuple[Callable[[], object], ...] = (
            lambda: _write(folder / f"plain-{number}", content),  # noqa: B023
            lambda: blobs.keep(content),  # noqa: B023
            lambda: blobs.keep(content),  # noqa: B023
        )
        for seconds, act in zip(took.values(), acts, strict=True):
            began = time.perf_counter()
            act()
            seconds.append(time.perf_counter() - began)
    return took


def _write(path: Path, content: bytes) -> None:
    with path.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def _ms(seconds: float) -> str:
    return f"{1000 * seconds:7.2f} ms"


if __name__ == "__main__":
    main()
