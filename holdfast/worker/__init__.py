"""A worker process: claims work, runs handlers, commits their results, and keeps its leases alive.

Each thread has one job. The committer talks to the database for all handlers. The heartbeat renews leases and listens
for notifications. The pools (an event loop, threads, child processes) run handlers and commit quick results themselves.
The main thread waits for signals.
"""

from holdfast.worker.settings import Settings
from holdfast.worker.worker import Worker

__all__ = ["Settings", "Worker"]
