"""Items per second through one and through three stages that do nothing, and the cost of a claim, on both databases."""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from benchmarks import claims, report, workloads
from benchmarks.databases import Database, databases
from holdfast import __version__

HOME = Path(__file__).resolve().parent
RESULTS = HOME / "results"
STAGES = (1, 3)
WAYS = ("raw", "async", "sync")


def main() -> None:
    options = read_options()
    began = time.monotonic()
    found: dict[str, Any] = {
        "holdfast": __version__,
        "python": platform.python_version(),
        "machine": f"{platform.machine()}, {os.cpu_count()} CPUs, load {os.getloadavg()[0]:.1f}",
        "at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "items": options.items,
        "rounds": options.rounds,
        "databases": {},
        "claims": [],
    }
    print(f"holdfast {__version__}, Python {found['python']}, {found['machine']}")
    print(f"{options.items:,} items, {options.rounds} rounds; medians, in brackets the lowest and the highest")
    print("a step is one stage of one item: claimed, run, finished, and the next stage begun\n")
    with databases(options.only, options.folder, options.postgres) as chosen:
        for database in chosen:
            measured = measure_rates(database, options)
            rows = report.summary(measured)
            found["databases"][database.name] = {"facts": database.facts, "measured": measured, "summary": rows}
            say("")
            print(report.rates(database.title, rows), end="\n\n", flush=True)
        for database in chosen:
            found["claims"].append(measure_claims(database, options))
        say("")
        print(report.claim_costs(found["claims"]))
    found["seconds"] = round(time.monotonic() - began, 1)
    options.results.mkdir(parents=True, exist_ok=True)
    file = options.results / f"{time.strftime('%Y%m%d-%H%M%S', time.gmtime())}.json"
    file.write_text(json.dumps(found, indent=1) + "\n")
    print(f"\n{found['seconds']:.0f} seconds in all; every figure is in {file}")


def measure_rates(database: Database, options: argparse.Namespace) -> list[report.Measured]:
    """Each round: the raw loop and holdfast, right after each other, each on a fresh store with the same items."""
    measured = []
    for turn in range(1, options.rounds + 1):
        for stages in STAGES:
            for what in WAYS:
                say(f"{database.name}, round {turn}: {stages} stages, {what}")
                url = database.fresh()
                same = {"url": url, "stages": stages, "items": options.items}
                workloads.fill(**same)
                database.settle()
                result = in_child(what=what, **same)
                database.drop(url)
                measured.append({"what": what, "stages": stages, "round": turn, "items": options.items, **result})
    return measured


def measure_claims(database: Database, options: argparse.Namespace) -> dict[str, Any]:
    say(f"{database.name}: claims with {options.waiting[0]:,} and {options.waiting[1]:,} waiting")
    stores = []
    for waiting in options.waiting:
        stores.append(database.fresh())
        claims.prepare(stores[-1], waiting)
    database.settle()
    seconds = in_child(what="claims", few=stores[0], many=stores[1])
    for url in stores:
        database.drop(url)
    return {"database": database.title.partition(",")[0], "waiting": options.waiting, **seconds}


def in_child(**order: Any) -> dict[str, Any]:
    """Measure in a new process: nothing is left over from the measurement before."""
    command = [sys.executable, "-m", "benchmarks.child", json.dumps(order)]
    child = subprocess.run(command, cwd=HOME.parent, stdout=subprocess.PIPE, text=True, check=False)
    if child.returncode:
        raise SystemExit(f"\na measurement failed: {order}")
    result: dict[str, Any] = json.loads(child.stdout.splitlines()[-1])
    return result


def say(text: str) -> None:
    """What is going on, in one line that the next one replaces."""
    if sys.stderr.isatty():
        print(f"\r\x1b[K{text}", end="", file=sys.stderr, flush=True)


def read_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("--items", type=int, help="items per measurement (20,000; with --quick 2,000)")
    parser.add_argument("--rounds", type=int, help="rounds (5; with --quick 3)")
    parser.add_argument("--only", choices=("sqlite", "postgres"), help="measure one database")
    parser.add_argument("--quick", action="store_true", help="small numbers: a look, not a measurement")
    parser.add_argument("--waiting", type=int, nargs=2, metavar=("FEW", "MANY"), help="rows waiting while claiming")
    parser.add_argument("--folder", type=Path, help="where to put the databases (the folder for temporary files)")
    parser.add_argument("--postgres", metavar="URL", help="use this server instead of starting one")
    parser.add_argument("--results", type=Path, default=RESULTS, help="where to put the JSON (benchmarks/results)")
    options = parser.parse_args()
    options.items = options.items or (2_000 if options.quick else 20_000)
    options.rounds = options.rounds or (3 if options.quick else 5)
    options.waiting = options.waiting or ([10_000, 100_000] if options.quick else [10_000, 1_000_000])
    if options.items < 1 or options.rounds < 1 or min(options.waiting) < 10_000:
        parser.error("items and rounds must be 1 or more, and 10,000 rows or more must wait")
    return options


if __name__ == "__main__":
    main()
