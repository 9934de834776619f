"""What stands in for a paid model, books, and the database of an earlier program. None of it is to be copied."""
