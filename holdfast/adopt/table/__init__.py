"""A table of the user's: which columns mean what, and whether they are fit for it."""
