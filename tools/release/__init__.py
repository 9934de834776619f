"""Makes a release out of a commit, and tries it as its users will: `make release`."""
