"""Writes migrations that add to a table of the user's the columns it lacks."""
