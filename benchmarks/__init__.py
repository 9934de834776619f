"""What holdfast costs, beside its peers and beside the database itself: `python -m benchmarks`, or `make bench`.

README.md says what is measured, how, and how to read it. Every figure is taken in a process of its own on a fresh store.
Machines are noisy, so what counts is the ratio between figures of one round.
"""
