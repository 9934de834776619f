"""Writes migrations that add missing columns to the user's table."""
