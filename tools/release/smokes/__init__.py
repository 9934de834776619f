"""A small program for each extra that uses what the extra is for. It runs where only holdfast and that extra are installed."""
