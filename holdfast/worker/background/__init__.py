"""What a worker does beside its work: heartbeat, recovery, guards, alerts."""
