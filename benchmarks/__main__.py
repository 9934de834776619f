"""What holdfast costs, beside the raw database and beside its peers. benchmarks/README.md says what is measured."""

from __future__ import annotations

import argparse
import json
import os
import platform
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks import chart, environments, redis, report
from benchmarks.children import Failed
from benchmarks.contenders import ASYNC, PEERS, RAW, RAW_IN_BULK, REDIS, SYNC, Contender
from benchmarks.databases import databases
from benchmarks.running import measure
from benchmarks.workload import Options
from benchmarks.workloads import workloads
from holdfast import __version__

RESULTS = Path(__file__).resolve().parent / "results"
SIZES = (1_000, 100_000, 1_000_000)
FULL_SIZES = (*SIZES, 10_000_000)
QUICK_SIZES = (1_000, 20_000)


def main() -> None:
    asked, options = read_options()
    began = time.monotonic()
    facts = {
        "holdfast": __version__,
        "python": platform.python_version(),
        "machine": f"{platform.machine()}, {os.cpu_count()} CPUs, load {os.getloadavg()[0]:.1f}",
        "at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "items": options.items,
        "rounds": options.rounds,
    }
    title = (
        f"holdfast {__version__}, Python {facts['python']}, {facts['machine']}; {options.rounds} rounds, {facts['at']}"
    )
    print(title)
    print("medians, in brackets the lowest and the highest; ratios are between figures of one round\n", flush=True)
    peers, absent = make_ready(asked.peers)
    for line in absent:
        print(line, flush=True)
    contenders = [*(() if asked.ours else (RAW, RAW_IN_BULK)), ASYNC, SYNC, *peers]
    drawn: list[report.Rows] = []
    found: dict[str, Any] = {**facts, "absent": absent, "databases": {}, "rows": []}
    with_redis = any(REDIS in one.databases for one in peers)
    with databases(asked.only, asked.folder, asked.postgres, with_redis) as chosen:
        found["databases"] = {one.title: one.facts for one in chosen}
        for name in asked.workloads:
            rows = measure(workloads()[name], contenders, chosen, options)
            drawn.append(rows)
            found["rows"] += report.as_json(rows)
            print(report.table(workloads()[name], rows), end="\n\n", flush=True)
    found["seconds"] = round(time.monotonic() - began, 1)
    files = write(asked.results, found, chart.draw(title, drawn))
    print(f"{found['seconds']:.0f} seconds in all; every figure is in {files[0]}, the drawing in {files[1]}")


def make_ready(peers: Sequence[Contender]) -> tuple[list[Contender], list[str]]:
    """The peers that can be measured, and why the others cannot."""
    ready, absent = [], []
    for peer in peers:
        if peer.databases == (REDIS,) and not redis.is_there():
            absent.append(f"{peer.title}: no Redis here (there is no program {redis.PROGRAM})")
            continue
        try:
            environments.make(peer.key, peer.packages)
            ready.append(peer)
        except Failed as reason:
            absent.append(f"{peer.title}: {reason}")
    return ready, absent


def write(folder: Path, found: dict[str, Any], drawing: str) -> tuple[Path, Path]:
    folder.mkdir(parents=True, exist_ok=True)
    stem = folder / time.strftime("%Y%m%d-%H%M%S", time.gmtime())
    files = stem.with_suffix(".json"), stem.with_suffix(".svg")
    files[0].write_text(json.dumps(found, indent=1) + "\n")
    files[1].write_text(drawing)
    return files


def read_options() -> tuple[argparse.Namespace, Options]:
    names = list(workloads())
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("workloads", nargs="*", metavar="W", help=f"which workloads: {' '.join(names)} (all)")
    parser.add_argument("--quick", action="store_true", help="small numbers: a look, not a measurement")
    parser.add_argument(
        "--full", action="store_true", help="W5, W8 and W11 up to 10 million items: hours, tens of gigabytes"
    )
    parser.add_argument("--only", choices=("sqlite", "postgres"), help="measure one database")
    parser.add_argument("--ours", action="store_true", help="leave out the raw loops: quicker where stores are filled")
    parser.add_argument("--peers", default="", metavar="A,B", help="peers to measure as well, by name, or: all")
    parser.add_argument("--items", type=int, help="items of W1 and W2 (20,000; with --quick 2,000)")
    parser.add_argument("--rounds", type=int, help="rounds (3; with --quick 1)")
    parser.add_argument(
        "--sizes", type=int, nargs="+", metavar="N", help="how many items W5, W8, W10 and W11 have, fewest first"
    )
    parser.add_argument("--lease", type=float, default=2.0, metavar="S", help="lease of W6 in seconds (2)")
    parser.add_argument(
        "--patience", type=float, default=1800.0, metavar="S", help="give up a measurement after (1800)"
    )
    parser.add_argument("--folder", type=Path, help="where to put the databases (the folder for temporary files)")
    parser.add_argument("--kept", type=Path, help="where SQLite files filled for W11 stay, to be used again")
    parser.add_argument("--postgres", metavar="URL", help="use this server instead of starting one")
    parser.add_argument("--results", type=Path, default=RESULTS, help="where to put JSON and SVG (benchmarks/results)")
    asked = parser.parse_args()
    asked.workloads = [name.upper() for name in asked.workloads] or names
    unknown = [name for name in asked.workloads if name not in names]
    if unknown:
        parser.error(f"there is no workload {unknown[0]}; there are {', '.join(names)}")
    by_key = {peer.key: peer for peer in PEERS}
    wanted = list(by_key) if asked.peers == "all" else [key for key in asked.peers.lower().split(",") if key]
    strange = [key for key in wanted if key not in by_key]
    if strange:
        parser.error(f"there is no peer {strange[0]}; there are {', '.join(by_key)}")
    asked.peers = [by_key[key] for key in wanted]
    items = (2_000 if asked.quick else 20_000) if asked.items is None else asked.items
    rounds = (1 if asked.quick else 3) if asked.rounds is None else asked.rounds
    sizes = tuple(asked.sizes or (QUICK_SIZES if asked.quick else FULL_SIZES if asked.full else SIZES))
    if items < 100 or rounds < 1 or min(sizes) < 1_000 or list(sizes) != sorted(sizes):
        parser.error("items must be 100 or more, rounds 1 or more, and sizes 1,000 or more, fewest first")
    return asked, Options(items, rounds, sizes, asked.lease, asked.patience, asked.quick, asked.kept)


if __name__ == "__main__":
    # Asked to end, it ends the servers and processes it has started.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    main()
