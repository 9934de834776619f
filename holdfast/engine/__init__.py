"""What can be done with items and stages: one operation per file, each inside a transaction it is given."""
