"""Values, states, moves and decisions: pure, and the same for every database."""
