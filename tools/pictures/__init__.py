"""The drawings of the documentation, made from data: `python -m tools.pictures` writes docs/pictures/*.svg.

Each has a background of its own, which follows the reader's colour scheme, so that it can be read wherever it is shown.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

from tools.pages import ROOT
from tools.pictures import crash, life

FOLDER = ROOT / "docs" / "pictures"
PICTURES: dict[str, Callable[[], str]] = {"life-of-an-item.svg": life.draw, "crash-and-recovery.svg": crash.draw}


def write(folder: Path = FOLDER) -> Iterator[Path]:
    """Write the pictures that differ; yield them."""
    folder.mkdir(exist_ok=True)
    for name, draw in PICTURES.items():
        file = folder / name
        if not file.exists() or file.read_text(encoding="utf-8") != draw():
            file.write_text(draw(), encoding="utf-8")
            yield file
