"""Crash tests of a user's own pipelines: kill a worker at every durable boundary, resume, and compare."""
