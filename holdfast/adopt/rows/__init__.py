"""The primitives on rows of the user's table: claim, finish, heartbeat, requeue. Each is one statement, or a few."""
