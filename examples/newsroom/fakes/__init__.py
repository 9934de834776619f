"""What stands in for the world outside, so that the tutorial needs nothing but this machine. Nothing of it is to be copied."""
