"""The workloads, by name."""

from benchmarks.workload import Workload
from benchmarks.workloads.adding import Adding
from benchmarks.workloads.asking import Asking
from benchmarks.workloads.browsing import Browsing
from benchmarks.workloads.draining import Draining, Stepping
from benchmarks.workloads.exporting import Exporting
from benchmarks.workloads.growing import Growing
from benchmarks.workloads.killing import Killing
from benchmarks.workloads.pacing import Pacing
from benchmarks.workloads.sharing import Sharing
from benchmarks.workloads.waking import Waking
from benchmarks.workloads.watching import Watching


def workloads() -> dict[str, Workload]:
    made = (
        Adding(),
        Draining(),
        Stepping(),
        Waking(),
        Growing(),
        Killing(),
        Pacing(),
        Asking(),
        Sharing(),
        Exporting(),
        Browsing(),
        Watching(),
    )
    return {one.name: one for one in made}
