"""What stands in for a model that writes, so that the example needs nothing but this machine. Nothing of it is to be copied."""
