"""One measurement in a process of its own: what to measure comes as JSON, what was found goes out as JSON."""

from __future__ import annotations

import json
import sys
from typing import Any

from benchmarks import claims, raw, workloads


def measure(order: dict[str, Any]) -> dict[str, Any]:
    what = order.pop("what")
    if what == "raw":
        return {"seconds": raw.drain(order["url"], order["stages"], order["items"])}
    if what in ("async", "sync"):
        return workloads.drain(order["url"], order["stages"], what, order["items"])
    assert what == "claims"
    return claims.measure(order["few"], order["many"])


if __name__ == "__main__":
    print(json.dumps(measure(json.loads(sys.argv[1]))))
