"""What a worker writes: finished attempts and new claims, together in one transaction at a time."""
