"""One statement, or a few, on rows of a table of the user's: claim, finish, keep alive, bring back."""
