"""EPUB, PDF and HTML → Markdown → chunks → embeddings → connections: `python -m examples.documents demo`, or `make demo`."""
