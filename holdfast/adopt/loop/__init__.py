"""The loop over the user's table: claims rows, runs the handler for each, saves the outcomes."""
