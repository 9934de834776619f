"""What a worker does in the background: heartbeat, maintenance, guards, alerts."""
