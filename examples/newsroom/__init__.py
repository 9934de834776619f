"""Discovery and staged processing from a job file: a local news site is read, analysed and indexed. See README.md."""
