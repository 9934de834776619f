"""What traces cost, in processor time per step: `python -m benchmarks.tracing`.

A worker on SQLite takes items through a stage that does nothing. Each case is a process of its own, since a program sets its
tracer provider once. In a round every case is measured right after the other, and ratios are between figures of one round.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

#: What a program has done before its worker begins.
CASES = {
    "no OpenTelemetry": "nothing",
    "imported, no provider": "import",
    "a provider that samples nothing": "off",
    "a provider that samples all, exports nothing": "on",
}


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.tracing", description=(__doc__ or "").partition("\n")[0]
    )
    parser.add_argument("--items", type=int, default=20_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--case", choices=[*CASES.values()], help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.case is not None:
        print(microseconds(given.case, given.items))
        return
    rounds = [{name: _in_a_process(case, given.items) for name, case in CASES.items()} for _ in range(given.rounds)]
    first = next(iter(CASES))
    print(f"{'µs of CPU per step; in brackets the lowest and the highest':60} against {first}")
    for name in CASES:
        figures, ratios = [one[name] for one in rounds], [one[name] / one[first] for one in rounds]
        print(f"{name:45} {_spread(figures, 1):>15} {_spread(ratios, 2):>18}")


def microseconds(case: str, items: int) -> float:
    """Per step, in this process."""
    from holdfast import Pipeline

    prepare(case)
    with tempfile.TemporaryDirectory() as folder:
        books = Pipeline("books", store=f"sqlite:///{Path(folder) / 'books.db'}")

        @books.stage()
        def nothing(item: object, ctx: object) -> None: ...

        books.add(str(number) for number in range(items))
        began = time.process_time_ns()
        books.run()
        return (time.process_time_ns() - began) / items / 1000


def prepare(case: str) -> None:
    if case == "nothing":
        return
    from opentelemetry import trace

    if case != "import":
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.sampling import ALWAYS_OFF, ALWAYS_ON

        trace.set_tracer_provider(TracerProvider(sampler=ALWAYS_ON if case == "on" else ALWAYS_OFF))


def _in_a_process(case: str, items: int) -> float:
    command = [sys.executable, "-m", "benchmarks.tracing", "--case", case, "--items", str(items)]
    return float(subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout)


def _spread(values: list[float], digits: int) -> str:
    return f"{median(values):.{digits}f} ({min(values):.{digits}f}–{max(values):.{digits}f})"


if __name__ == "__main__":
    main()
