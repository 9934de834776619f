"""The peers, each by its public API and with its fastest documented settings.

A script runs in the environment of its peer, where holdfast and its packages are not: it may import the standard library,
its peer, and the modules of `benchmarks` that need no more than the standard library.
"""
