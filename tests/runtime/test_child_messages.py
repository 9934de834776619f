"""What a worker and its child processes say to each other."""

from __future__ import annotations

import subprocess
import sys

#: Threads that all receive the first message of their lives at the same moment.
AT_ONCE = """
import socket, sys, threading
from types import SimpleNamespace
from holdfast.engine.claim import Lease
from holdfast.engine.finish_leases import FinishedAttempt
from holdfast.model.states import State
from holdfast.runtime import child_messages as wire
from holdfast.worker.isolated import StageConversation

sys.setswitchinterval(1e-6)
lease = Lease(1, 1, 1, 1, 0, 0, "k", "{}", 0)
spec = SimpleNamespace(timeout_seconds=None)
call = SimpleNamespace(leases=[lease], spec=spec, times_us=lambda: (0, 0))
together = threading.Barrier(16)
ended = []

def talk():
    mine, its = socket.socketpair()
    wire.send(its, [FinishedAttempt(lease, State.DONE)])
    together.wait()
    ended.extend(StageConversation(None, None).talk(call, mine))

threads = [threading.Thread(target=talk) for _ in range(16)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
assert [one.lease for one in ended] == [lease] * 16
"""


def test_threads_that_hear_from_their_first_children_at_once_do_not_end_the_worker():
    for _ in range(5):
        subprocess.run([sys.executable, "-c", AT_ONCE], check=True, timeout=60)
