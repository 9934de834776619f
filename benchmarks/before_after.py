"""Two trees of this repository measured in turns, in one run: what a change has cost, or won, as ratios.

    git worktree add /tmp/before v0.1.0
    python -m benchmarks.before_after /tmp/before [W2 W3] [--pairs 8] [--only sqlite|postgres]

This tree is the one after. Each pair runs the benchmarks of both trees once, in random order, with this Python and its
packages. A figure's ratio is that of a pair, and printed as the mean of all pairs with its standard error: on a machine that
others use, seconds drift more than most changes cost, and pairs of neighbours in time drift together.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import mean, median, stdev
from typing import TypeAlias

HERE = Path(__file__).resolve().parents[1]
DATABASES = ("sqlite", "postgres")

#: By workload, case, contender and figure.
Figures: TypeAlias = dict[tuple[str, str, str, str], float]


def measure(tree: Path, database: str, workloads: list[str], items: int) -> Figures:
    """One round of the benchmarks of a tree."""
    with tempfile.TemporaryDirectory() as results:
        command = [sys.executable, "-m", "benchmarks", *workloads, "--ours", "--rounds", "1", "--only", database]
        command += ["--items", str(items), "--results", results]
        environment = {**os.environ, "PYTHONPATH": str(tree)}
        subprocess.run(command, cwd=tree, env=environment, check=True, stdout=subprocess.DEVNULL)
        [found] = Path(results).glob("*.json")
        rows = json.loads(found.read_text())["rows"]
    return {
        (row["workload"], row["case"], row["contender"], name): value
        for row in rows
        for figures in row["rounds"].values()
        for name, value in figures.items()
        if value
    }


def report(database: str, before: list[Figures], after: list[Figures]) -> None:
    shared = [key for key in before[0] if all(key in one for one in [*before, *after])]
    width = max(len(" ".join(key)) for key in shared)
    for key in sorted(shared, key=lambda key: (key[3], key)):
        ratios = [new[key] / old[key] for old, new in zip(before, after, strict=True)]
        middle = f"{median(one[key] for one in before):12,.1f} → {median(one[key] for one in after):12,.1f}"
        print(f"{database:9} {' '.join(key):{width}} {middle}   {_ratio(ratios)}")
    for name in dict.fromkeys(key[3] for key in shared):
        same = [key for key in shared if key[3] == name]
        ratios = [mean(new[key] / old[key] for key in same) for old, new in zip(before, after, strict=True)]
        print(f"{database:9} all of {name}: {_ratio(ratios)}")


def _ratio(ratios: list[float]) -> str:
    error = stdev(ratios) / len(ratios) ** 0.5 if len(ratios) > 1 else float("nan")
    return f"× {mean(ratios):.3f} ± {error:.3f}"


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.before_after", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("before", type=Path, help="the tree to compare with")
    parser.add_argument("workloads", nargs="*", default=["W2", "W3"], metavar="W", help="which workloads (W2 W3)")
    parser.add_argument("--pairs", type=int, default=8, help="how many rounds of each tree (8)")
    parser.add_argument("--items", type=int, default=20_000, help="items of W1 and W2 (20,000)")
    parser.add_argument("--only", choices=DATABASES, help="measure one database")
    given = parser.parse_args()
    trees = (given.before.resolve(), HERE)
    for database in [given.only] if given.only else DATABASES:
        found: tuple[list[Figures], list[Figures]] = ([], [])
        for _ in range(given.pairs):
            for which in random.sample((0, 1), 2):
                found[which].append(measure(trees[which], database, given.workloads, given.items))
        report(database, *found)


if __name__ == "__main__":
    main()
