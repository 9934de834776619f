"""A worker process: claims, runs handlers, commits what they did, and keeps its leases alive.

Threads, each with one duty: the committer talks to the database for everyone; the pulse beats and listens; the pools
run handlers (an event loop, threads, child processes), and commit what was quick themselves; the main thread waits for signals.
"""

from holdfast.worker.worker import Settings, Worker

__all__ = ["Settings", "Worker"]
