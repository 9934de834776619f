"""Runs calls of user code in threads, on an event loop or in child processes. It does not know where the work comes
from.
"""
