"""What the Makefile calls and nobody installs."""
