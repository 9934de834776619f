"""The user's table: what each column means, and whether the table in the database supports it."""
