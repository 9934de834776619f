"""Runs calls of user code: in threads, on an event loop, in child processes. It knows calls, not where work comes from."""
