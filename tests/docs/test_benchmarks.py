"""The benchmark runs, with tiny numbers: what it measures is right, how fast it was does not matter here."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize("only", ["sqlite", "postgres"])
def test_the_benchmark_measures_holdfast_beside_the_raw_loop(only: str, tmp_path: Path):
    results = tmp_path / "results"
    ended = subprocess.run(
        [sys.executable, "-m", "benchmarks", "--only", only, "--items", "700", "--rounds", "1", "--waiting", "10000",
         "12000", "--results", str(results)],
        cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT)}, text=True, capture_output=True, timeout=240,
    )  # fmt: skip
    assert ended.returncode == 0, ended.stdout + ended.stderr

    [file] = results.glob("*.json")
    found = json.loads(file.read_text())
    measured = found["databases"][only]["measured"]
    assert [(one["stages"], one["what"]) for one in measured] == [
        (stages, what) for stages in (1, 3) for what in ("raw", "async", "sync")
    ]
    assert all(one["seconds"] > 0 and one["items"] == 700 for one in measured)
    [claims] = found["claims"]
    assert len(claims["few"]) == len(claims["many"]) > 1
    assert "against raw" in ended.stdout
    assert "many against few" in ended.stdout


def test_the_benchmark_says_what_it_cannot_do():
    ended = subprocess.run(
        [sys.executable, "-m", "benchmarks", "--rounds", "-1"], cwd=ROOT, text=True, capture_output=True, timeout=60
    )
    assert ended.returncode == 2
    assert "rounds must be 1 or more" in ended.stderr
