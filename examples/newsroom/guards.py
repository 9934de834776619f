"""What must be true on a worker's machine before it begins anything: no file named `embargo` lies in its folder."""

from __future__ import annotations

import os
from pathlib import Path


def no_embargo() -> bool | str:
    """True, or why not."""
    file = Path(os.environ.get("NEWSROOM_EMBARGO", "embargo"))
    if not file.exists():
        return True
    words = file.read_text(encoding="utf-8", errors="replace").strip()
    return f"there is an embargo: {words}" if words else f"there is an embargo, until somebody removes {file}"
