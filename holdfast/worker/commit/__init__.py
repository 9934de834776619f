"""What a worker writes: finished attempts and new claims, in one transaction at a time."""
