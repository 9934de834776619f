"""What stands in for the web and its sites, so that the example needs this machine only. Nothing of it is to be copied."""
