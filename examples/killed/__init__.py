"""A pipeline that is killed twice before your eyes, and goes on: `python -m examples.killed`, or `make demo`."""
