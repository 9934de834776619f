"""What a step costs, beside the database itself: `python -m benchmarks`, or `make bench`.

Every figure is taken in a process of its own on a fresh store. Machines are noisy, so what counts is the ratio between
figures of one round: a round measures the raw loop and holdfast right after each other, and there are several rounds.
"""
