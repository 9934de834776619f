"""The loop over a table of the user's: claims rows, runs the handler for each, saves how it went."""
