"""How much longer things take on a machine that has other work to do."""

from __future__ import annotations

import os
from pathlib import Path


def slowness() -> float:
    """By what factor something may take longer now than on a quiet machine: how many want each processor, at this moment or
    in the last minute; at least 1."""
    wanting = [os.getloadavg()[0]]
    if (now := Path("/proc/loadavg")).exists():
        wanting.append(int(now.read_text().split()[3].partition("/")[0]))
    return max(1.0, max(wanting) / (os.cpu_count() or 1))
